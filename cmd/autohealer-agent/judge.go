package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/logwatch"
	"github.com/resourcestack/autohealer/internal/probe/settings"
	"github.com/resourcestack/autohealer/internal/probe/stats"
)

// judge says whether a version of a file can be used. What it warns of is taken, and
// may not be meant.
func judge(path string, kind config.Kind, text []byte) (file *config.File, warnings []string, err error) {
	file, warnings, err = config.Parse(path, kind, text)
	if err != nil && kind == config.Problems {
		err = withRest(path, err, config.DraftSources(text))
	}
	if err != nil {
		return nil, warnings, err
	}
	if file.Problems != nil {
		exposed, err := judgeSources(path, file.Problems)
		if err != nil {
			return nil, warnings, err
		}
		warnings = append(warnings, exposed...)
	}
	if file.Stats != nil {
		odd, err := stats.Check(*file.Stats)
		if err != nil {
			return nil, warnings, prefixed(path, err)
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

// prefixed has every line of an error begin with the path of its file.
func prefixed(path string, err error) error {
	return fmt.Errorf("%s: %s", path, strings.ReplaceAll(err.Error(), "\n", "\n"+path+": "))
}

// judgeHere also warns of programs and tokens that are not on this machine. Whoever runs
// the agent cannot do anything about that, whoever writes a file can; and an agent that
// looked for them would hang with a file system that does not answer.
func judgeHere(path string, kind config.Kind, text []byte) (file *config.File, warnings []string, err error) {
	file, warnings, err = judge(path, kind, text)
	if err != nil {
		return nil, warnings, err
	}
	if file.Problems != nil {
		unread, err := sources(file.Problems).Tokens()
		if err != nil {
			return nil, warnings, prefixed(path, err)
		}
		warnings = append(warnings, unread...)
	}
	return file, append(warnings, file.MissingPrograms()...), nil
}

// validate says of each file whether it can be used. The error says that one cannot.
func validate(names []settings.Name, out io.Writer) error {
	shelf := settings.New(settings.Config{Names: names, Judge: judgeHere})
	shelf.Read()
	bad, all := 0, shelf.Settings()
	monitors := map[string][]config.Condition{}
	for _, s := range all {
		if s.File != nil {
			monitors[s.Path] = conditionsOf(s.File)
		}
	}
	for _, s := range all {
		if s.File != nil && s.File.Problems != nil {
			s.Warnings = append(s.Warnings, bothKeep(sources(s.File.Problems), monitors)...)
		}
		if s.Err != nil {
			bad++
			fmt.Fprintf(out, "%s: not ok\n  %s\n", s.Path, strings.ReplaceAll(s.Err.Error(), "\n", "\n  "))
			continue
		}
		fmt.Fprintf(out, "%s: ok, %s\n", s.Path, describe(s.File))
		for _, warning := range s.Warnings {
			fmt.Fprintf(out, "  warning: %s\n", strings.TrimPrefix(warning, s.Path+": "))
		}
	}
	switch {
	case bad == 1 && len(all) == 1:
		return errors.New("the file cannot be used")
	case bad > 0:
		return fmt.Errorf("%d of %d files cannot be used", bad, len(all))
	}
	return nil
}

// describe says what a file asks for.
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
		words += ": " + count(len(stats.Names(*f.Stats)), "figure")
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
