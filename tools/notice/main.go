// Command notice writes the NOTICE file: the modules that are linked into the programs
// that users run, and their licences in full, as most licences require for the distribution
// of a binary.
//
// It fails if a module has no licence or an unknown licence, so that a developer reviews each
// new dependency. It does not judge whether two licences go together.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "notice: name the folder of a module, and packages of programs in it")
		os.Exit(2)
	}
	text, err := notice(context.Background(), os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "notice:", err)
		os.Exit(1)
	}
	if _, err := os.Stdout.WriteString(text); err != nil {
		os.Exit(1)
	}
}

// module is a linked module with its licence.
type module struct {
	path, version string
	kind          string
	licence       string // in full
	notice        string // what its own NOTICE says
}

func notice(ctx context.Context, folder string, packages []string) (string, error) {
	modules, err := linked(ctx, folder, packages)
	if err != nil {
		return "", err
	}
	return write(modules), nil
}

// linked returns the modules of packages and of all that they import.
func linked(ctx context.Context, folder string, packages []string) ([]module, error) {
	command := exec.CommandContext(ctx, "go", append([]string{"list", "-deps", "-tags=grpcnotrace", "-json=Module,Standard"}, packages...)...)
	command.Dir = folder
	// Programs are for Linux, whatever this machine is.
	command.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	var complaints bytes.Buffer
	command.Stderr = &complaints
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("listing what is linked: %w: %s", err, complaints.String())
	}
	seen := map[string]bool{}
	var all []module
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Module *struct {
				Path, Version, Dir string
				Main               bool
				Replace            *struct{ Path string }
			}
		}
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if p.Module == nil || p.Module.Main || seen[p.Module.Path] {
			continue
		}
		seen[p.Module.Path] = true
		m := module{path: p.Module.Path, version: p.Module.Version}
		if err := m.read(p.Module.Dir); err != nil {
			return nil, fmt.Errorf("module %s: %w", m.path, err)
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b module) int { return strings.Compare(a.path, b.path) })
	return all, nil
}

// read reads the licence of a module. Some have it under another name.
func (m *module) read(folder string) error {
	for _, name := range []string{"LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "COPYING", "License", "LICENSE-APACHE-2.0.txt"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		m.licence = tidy(text)
		break
	}
	if m.licence == "" {
		return errors.New("it has no licence; do not link it")
	}
	if m.kind = kindOf(m.licence); m.kind == "" {
		return errors.New("its licence is not known; read it, and add it to tools/notice if it may be linked")
	}
	text, err := os.ReadFile(filepath.Join(folder, "NOTICE"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	m.notice = tidy(text)
	return nil
}

func tidy(text []byte) string {
	return strings.Trim(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n")
}

// kindOf tells a licence by sentences that only it has.
func kindOf(licence string) string {
	text := strings.Join(strings.Fields(licence), " ")
	has := func(sentence string) bool { return strings.Contains(text, sentence) }
	var kinds []string
	if has("Apache License") && has("Version 2.0") {
		kinds = append(kinds, "Apache-2.0")
	}
	if has("Permission is hereby granted, free of charge, to any person obtaining a copy") {
		kinds = append(kinds, "MIT")
	}
	if has("Redistribution and use in source and binary forms") {
		if has("Neither the name of") || has("The names of") || has("names of its contributors") {
			kinds = append(kinds, "BSD-3-Clause")
		} else {
			kinds = append(kinds, "BSD-2-Clause")
		}
	}
	if has("Permission to use, copy, modify, and/or distribute this software") || has("Permission to use, copy, modify, and distribute this software") {
		kinds = append(kinds, "ISC")
	}
	return strings.Join(kinds, " and ")
}

// write tells every text once, with the modules that have it.
func write(modules []module) string {
	var out strings.Builder
	out.WriteString(`Autohealer
The programs of Autohealer contain the following Go modules. Their licences follow.
This file is generated: run make generate.

`)
	for _, m := range modules {
		fmt.Fprintf(&out, "%s %s (%s)\n", m.path, m.version, m.kind)
	}
	texts(&out, modules, "NOTICE", func(m module) string { return m.notice })
	texts(&out, modules, "licence", func(m module) string { return m.licence })
	return out.String()
}

func texts(out *strings.Builder, modules []module, what string, text func(module) string) {
	of := map[string][]string{}
	for _, m := range modules {
		if t := text(m); t != "" {
			of[t] = append(of[t], m.path)
		}
	}
	type group struct{ text, names string }
	groups := make([]group, 0, len(of))
	for t, paths := range of {
		groups = append(groups, group{t, strings.Join(paths, "\n")})
	}
	slices.SortFunc(groups, func(a, b group) int { return cmp.Compare(a.names, b.names) })
	for _, g := range groups {
		fmt.Fprintf(out, "\n%s\nThe %s of\n%s\n\n%s\n", strings.Repeat("=", 80), what, g.names, g.text)
	}
}
