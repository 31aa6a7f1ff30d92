package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/intake"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logwatch"
	"github.com/resourcestack/autohealer/internal/probe/settings"
	"github.com/resourcestack/autohealer/internal/probe/stats"
)

// checkFile reads a version of a file and returns an error if it is unusable. Warnings name
// parts that are accepted but may be mistakes.
func checkFile(path string, kind config.Kind, text []byte) (file *config.File, warnings []string, err error) {
	file, warnings, err = config.Parse(path, kind, text)
	if err != nil && kind == config.Problems {
		err = addSourceErrors(path, err, config.DraftSources(text))
	}
	if err != nil {
		return nil, warnings, err
	}
	if file.Problems != nil {
		exposed, err := checkSources(path, file.Problems)
		if err != nil {
			return nil, warnings, err
		}
		warnings = append(warnings, exposed...)
	}
	if file.Stats != nil {
		odd, err := stats.Check(*file.Stats)
		if err != nil {
			return nil, warnings, prefixLines(path, err)
		}
		for _, warning := range odd {
			warnings = append(warnings, path+": "+warning)
		}
	}
	if file.Log == nil {
		return file, warnings, nil
	}
	expensive, err := logwatch.Check(*file.Log)
	if err != nil {
		return nil, warnings, fmt.Errorf("%s: %w", path, err)
	}
	for _, pattern := range expensive {
		warnings = append(warnings, fmt.Sprintf("%s: the pattern %q is expensive: it is tried on every line, as no text is in all of its matches", path, pattern))
	}
	return file, warnings, nil
}

// prefixLines puts the path of a file before every line of an error.
func prefixLines(path string, err error) error {
	return fmt.Errorf("%s: %s", path, strings.ReplaceAll(err.Error(), "\n", "\n"+path+": "))
}

// checkFileOnHost also warns of programs and tokens that are missing on this machine. Only
// the author of a file can fix them, so the running agent does not look: it would hang with
// a file system that does not answer.
func checkFileOnHost(path string, kind config.Kind, text []byte) (file *config.File, warnings []string, err error) {
	file, warnings, err = checkFile(path, kind, text)
	if err != nil {
		return nil, warnings, err
	}
	if file.Problems != nil {
		unread, err := sources(file.Problems).Tokens()
		if err != nil {
			return nil, warnings, prefixLines(path, err)
		}
		warnings = append(warnings, unread...)
	}
	return file, append(warnings, file.MissingPrograms()...), nil
}

// validate prints for each file whether it is usable, and returns an error if one is not.
func validate(names []settings.Name, out io.Writer) error {
	files := settings.New(settings.Config{Names: names, Parse: checkFileOnHost})
	files.Read()
	bad, all := 0, files.Settings()
	monitors := map[string][]config.Condition{}
	var daemons intake.Setup
	for _, s := range all {
		switch {
		case s.File == nil:
		case s.File.Problems != nil:
			daemons = sources(s.File.Problems)
		default:
			monitors[s.Path] = conditionsOf(s.File)
		}
	}
	for _, s := range all {
		if s.Err != nil {
			bad++
			fmt.Fprintf(out, "%s: not ok\n  %s\n", s.Path, strings.ReplaceAll(s.Err.Error(), "\n", "\n  "))
			continue
		}
		fmt.Fprintf(out, "%s: ok, %s\n", s.Path, describe(s.File))
		for _, c := range declaredTypes(s.File) {
			fmt.Fprintf(out, "  condition %s: %s on a healthy node. %s\n", c.Type, c.Healthy, c.Meaning)
		}
		for _, warning := range s.Warnings {
			fmt.Fprintf(out, "  warning: %s\n", strings.TrimPrefix(warning, s.Path+": "))
		}
	}
	if shared := sharedConditions(daemons, monitors); len(shared) > 0 {
		fmt.Fprintf(out, "several files\n  warning: %s\n", strings.Join(shared, "\n  warning: "))
	}
	switch {
	case bad == 1 && len(all) == 1:
		return errors.New("the file cannot be used")
	case bad > 0:
		return fmt.Errorf("%d of %d files cannot be used", bad, len(all))
	}
	return nil
}

// declaredTypes returns the condition types that a file adds to the catalogue, with their meaning.
func declaredTypes(f *config.File) []catalog.Condition {
	var types []catalog.Condition
	if f.Problems != nil && len(f.Problems.Sources) > 0 {
		types = slices.Clone(f.Problems.Sources[0].Declared)
	}
	for _, c := range conditionsOf(f) {
		if c.Meaning != "" {
			types = append(types, catalog.Condition{Type: c.Type, Healthy: c.Healthy, Meaning: c.Meaning})
		}
	}
	return slices.DeleteFunc(types, func(c catalog.Condition) bool {
		_, inCatalog := catalog.Lookup(c.Type)
		return inCatalog
	})
}

// describe summarizes a file.
func describe(f *config.File) string {
	words := string(f.Kind)
	asks := func(conditions []config.Condition, rules int) string {
		return fmt.Sprintf(": %s, %s", count(len(conditions), "condition"), count(rules, "rule"))
	}
	switch {
	case f.Log != nil:
		words += " of " + f.Log.Plugin + asks(f.Log.Conditions, len(f.Log.Rules))
	case f.Plugin != nil:
		words += asks(f.Plugin.Conditions, len(f.Plugin.Rules))
	case f.Check != nil:
		words += asks(f.Check.Conditions, len(f.Check.Rules))
	case f.Stats != nil:
		words += ": " + count(len(stats.Names(*f.Stats)), "metric")
	case f.Problems != nil:
		conditions := 0
		for i := range f.Problems.Sources {
			conditions += len(f.Problems.Sources[i].Conditions)
		}
		words += fmt.Sprintf(": %s, %s", count(len(f.Problems.Sources), "source"), count(conditions, "condition"))
	}
	if !f.Nodes.Empty() {
		words += ", on nodes with " + f.Nodes.String()
	}
	return words
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
