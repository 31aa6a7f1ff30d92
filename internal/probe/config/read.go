package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// maxBytes is the maximum size of a file. It is more than a ConfigMap can hold.
const maxBytes = 1 << 20

// Read reads a file and parses it with [Parse]. It also warns of programs that are missing on this
// machine, which may not be the machine that the file is for.
func Read(path string, kind Kind) (*File, []string, error) {
	text, err := readLimited(path)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: cannot be read: %w; check that the flag --config.%s names a file", path, err, kind)
	}
	file, warnings, err := Parse(path, kind, text)
	if err != nil {
		return nil, warnings, err
	}
	return file, append(warnings, file.MissingPrograms()...), nil
}

// readLimited reads a file up to a length that shows whether it is too long.
func readLimited(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	return text, withoutPath(err)
}

// withoutPath removes the path from an error, because the message already contains it.
func withoutPath(err error) error {
	if broken, ok := errors.AsType[*fs.PathError](err); ok {
		return broken.Err
	}
	return err
}

// MissingPrograms warns of programs that are missing on this machine or not executable.
func (f *File) MissingPrograms() []string {
	if f.Plugin == nil {
		return nil
	}
	var warnings []string
	for i, rule := range f.Plugin.Rules {
		info, err := os.Stat(rule.Path)
		at := fmt.Sprintf("%s: rules[%d].path: ", f.Path, i)
		switch {
		case err != nil:
			warnings = append(warnings, at+fmt.Sprintf("%q on this machine: %v", rule.Path, withoutPath(err)))
		case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
			warnings = append(warnings, at+fmt.Sprintf("%q on this machine is no file that can be executed", rule.Path))
		}
	}
	return warnings
}

// Parse parses the text of a file. The path appears in messages, and names a monitor that has no
// name. An error has a line for each problem, in the order in which the documentation lists the
// fields. Warnings describe valid fields that may not mean what the user wants. Parse also returns
// them next to an error.
func Parse(path string, kind Kind, text []byte) (*File, []string, error) {
	r := &reader{path: path, strict: kind == Problems}
	root, err := parseObject(text)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	top := r.section("", "the top", root)
	if err := checkKind(kind, top); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	file := &File{Path: path, Kind: kind}
	switch kind {
	case SystemLog:
		file.Log = logMonitor(top)
	case CustomPlugin:
		file.Plugin = pluginMonitor(top)
	case SystemStats:
		file.Stats = statsMonitor(top)
	case Check:
		file.Check = checkMonitor(top)
	case Problems:
		file.Problems = problemSources(top)
	}
	file.Nodes = nodeSelector(top)
	r.warnOfSlips()
	if len(r.problems) > 0 {
		return nil, r.warnings, errors.Join(r.problems...)
	}
	return file, r.warnings, nil
}

// ForNode returns whether the monitor of the file runs on a node with these labels.
func (f *File) ForNode(node map[string]string) bool { return f.Nodes.Matches(labels.Set(node)) }

// checkKind refuses a file whose content belongs to another kind than the flag that names it.
func checkKind(kind Kind, top *section) error {
	if !slices.Contains([]Kind{SystemLog, CustomPlugin, SystemStats, Check, Problems}, kind) {
		return fmt.Errorf("there is no kind of monitors %q", kind)
	}
	looks, because := kindOf(top)
	if looks == "" || looks == kind {
		return nil
	}
	return fmt.Errorf("%s is of a file for --config.%s; name it there, and not under --config.%s", because, looks, kind)
}

// kindOf detects the kind of a file by fields that only this kind has.
func kindOf(top *section) (kind Kind, because string) {
	if value, ok := top.fields.get("plugin"); ok {
		switch value {
		case Kmsg, Journald, Filelog:
			return SystemLog, fmt.Sprintf(`"plugin": %q`, value)
		case custom:
			return CustomPlugin, fmt.Sprintf(`"plugin": %q`, value)
		case builtin:
			return Check, fmt.Sprintf(`"plugin": %q`, value)
		}
		return "", ""
	}
	if value, ok := top.fields.get("sources"); ok {
		if _, ok := value.([]any); ok {
			return Problems, `the list "sources"`
		}
	}
	for _, part := range parts {
		if value, ok := top.fields.get(part); ok {
			if _, ok := value.(object); ok {
				return SystemStats, fmt.Sprintf("the section %q", part)
			}
		}
	}
	return "", ""
}

// list joins names with commas.
func list(names []string) string { return strings.Join(names, ", ") }
