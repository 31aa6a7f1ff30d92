package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// commands are the programs and their subcommands, with the flag that lists all flags.
var commands = []struct{ name, help string }{
	{"autohealer-controller", "--help"},
	{"autohealer-controller cleanup", "--help"},
	{"autohealer-controller crds", "--help"},
	{"autohealer-agent", "--help-all"},
	{"autohealer-agent clear", "--help"},
}

// flagPage returns the page about the flags. It builds the programs and parses their help.
func flagPage(repository string) (string, error) {
	p := newPage("Flags", "Flags", 70)
	p.add("This page lists the flags of the programs and their subcommands, as `--help` prints them.")
	p.add("Write `--name=value`, or `--name` to switch something on. The [agent](agent.md) also accepts the spellings of node-problem-detector. " +
		"[Helm values](helm-values.md) set most flags, and `controller.args` and `agent.args` all of them.")
	folder, err := os.MkdirTemp("", "generate-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(folder)
	build := exec.Command("go", "build", "-ldflags=-w", "-o", folder, "./cmd/autohealer-controller", "./cmd/autohealer-agent")
	build.Dir = repository
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	for _, c := range commands {
		args := strings.Fields(c.name + " " + c.help)
		help := exec.Command(filepath.Join(folder, args[0]), args[1:]...)
		// Defaults depend on the environment, and in a pod on its namespace.
		help.Env = []string{"POD_NAMESPACE=autohealer-system"}
		out, err := help.CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("running %s %s: %w\n%s", c.name, c.help, err, out)
		}
		p.add("## %s", c.name)
		if err := p.addFlags(string(out)); err != nil {
			return "", fmt.Errorf("reading what %s %s prints: %w", c.name, c.help, err)
		}
	}
	return p.String(), nil
}

var (
	// flagLine is the first line about a flag: its name, and the name of its value.
	flagLine = regexp.MustCompile(`^  -(\S+)(?: (\S+))?$`)
	// usageLine is the second line: what the flag means.
	usageLine = regexp.MustCompile(`^    \t(.+?)(?: \(default (.+)\))?$`)
)

// addFlags adds the flags of a program from its help: sentences about the program, then groups
// of flags, of which each has a heading if there are several.
func (p *page) addFlags(help string) error {
	inTable := false
	lines := strings.Split(strings.TrimSpace(help), "\n")
	for i := 0; i < len(lines); i++ {
		flag := flagLine.FindStringSubmatch(lines[i])
		heading, isHeading := strings.CutSuffix(lines[i], ":")
		switch {
		case flag != nil && i+1 < len(lines) && usageLine.MatchString(lines[i+1]):
			i++
			usage := usageLine.FindStringSubmatch(lines[i])
			if !inTable {
				p.header("flag", "default", "meaning")
			}
			inTable = true
			p.row(code(flagName(flag[1], flag[2])), code(flagDefault(flag[2], usage[1], usage[2])), plain(usage[1]))
		case strings.HasPrefix(lines[i], " "):
			return fmt.Errorf("line %d is %q; want a flag and its meaning on two lines, as package flag prints them", i+1, lines[i])
		case lines[i] == "":
		case isHeading && i > 0:
			inTable = false
			p.add("### %s", heading)
		default:
			p.add("%s", plain(strings.TrimSuffix(heading, " Flags")))
		}
	}
	return nil
}

func flagName(name, value string) string {
	if value == "" {
		return "--" + name
	}
	return "--" + name + "=" + value
}

// flagDefault returns the default. Package flag prints strings in quotes, and does not print the
// default false.
func flagDefault(value, usage, printed string) string {
	if text, err := strconv.Unquote(printed); err == nil {
		return text
	}
	if printed == "" && value == "" && !strings.HasPrefix(usage, "ignored: ") {
		return "false"
	}
	return printed
}
