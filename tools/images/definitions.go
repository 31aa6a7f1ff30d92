package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// definition says what an image contains.
type definition struct {
	name  string
	title string // for people who see the image in a registry
	// fixed is the reference of an image that the manifests do not name.
	fixed  string
	module string // folder of the module of its only program
	source string // package of that program
	user   string // the default user of the container
	config bool   // whether it has the files of config/
	// flags precede the arguments of the container.
	flags []string
	// links are further names of the program, which looks at the name that it was started with.
	links []string
	// further are files beside the program and those of config/.
	further []entry
	// packages are Debian packages, in a layer of their own below the files.
	packages []string
	suffix   string // of the tag, if the image is a variant of another
}

// Both paths are the same on a node. Old manifests of node-problem-detector use /var/run.
var runFolders = []entry{{path: "/run", folder: true, mode: 0o755}, {path: "/var/run", link: "/run", mode: 0o777}}

// helpers are the programs that configurations of node-problem-detector start. The agent
// contains all of them.
var helpers = map[string][]string{
	"/bin":                 {"sh"},
	"/home/kubernetes/bin": {"health-checker", "log-counter"},
	"/config/plugin":       {"check_ntp.sh", "network_problem.sh", "dns_problem.sh", "iptables_mode.sh"},
}

// agentFlags are those of the image of node-problem-detector: a manifest with arguments and without
// a command relies on the two monitors, and adds its own.
var agentFlags = []string{"--config.system-log-monitor=/config/kernel-monitor.json,/config/readonly-monitor.json"}

// definitions are the images of a release.
var definitions = func() []definition {
	agent := definition{
		name: "autohealer-agent", title: "Autohealer agent", source: "./cmd/autohealer-agent",
		config: true, links: agentNames(), flags: agentFlags, further: runFolders,
	}
	scripts := agent
	scripts.name, scripts.suffix, scripts.title = "autohealer-agent-scripts", "-scripts", "Autohealer agent with sh, bash, python3 and tools for plugins"
	scripts.links = slices.DeleteFunc(agentNames(), func(name string) bool { return name == "/bin/sh" })
	scripts.packages = scriptPackages
	controller := definition{name: "autohealer-controller", title: "Autohealer controller", source: "./cmd/autohealer-controller", user: "65532:65532"}
	return []definition{agent, controller, scripts}
}()

// pause is the program of empty pods, for real nodes of the testbed. It is not part of a release.
var pause = definition{name: "pause", title: "pause", fixed: "localhost/pause:1", module: "testbed", source: "./pause"}

// choose returns the images of these names; without names, those that need no Debian.
func choose(names []string) ([]definition, error) {
	if len(names) == 0 {
		return slices.DeleteFunc(slices.Clone(definitions), func(d definition) bool { return len(d.packages) > 0 }), nil
	}
	var chosen []definition
	for _, name := range names {
		all := append(slices.Clone(definitions), pause)
		at := slices.IndexFunc(all, func(d definition) bool { return d.name == name })
		if at < 0 {
			return nil, fmt.Errorf("there is no image %q; want autohealer-agent, autohealer-controller, autohealer-agent-scripts or pause", name)
		}
		chosen = append(chosen, all[at])
	}
	return chosen, nil
}

// agentNames are the paths of the agent under the names of node-problem-detector's programs.
func agentNames() []string {
	names := []string{"/node-problem-detector"}
	for folder, programs := range helpers {
		for _, program := range programs {
			names = append(names, path.Join(folder, program))
		}
	}
	slices.Sort(names)
	return names
}

// program is the name of the program in the image.
func (d definition) program() string { return path.Base(d.source) }

// reference is the name and tag of the image. tags are those of the manifests, by image.
func (d definition) reference(tags map[string]string) string {
	if d.fixed != "" {
		return d.fixed
	}
	return tags[d.program()] + d.suffix
}

// entry is a file, a folder or a symbolic link.
type entry struct {
	path    string // from the root
	content []byte
	mode    int64
	link    string // target of a symbolic link
	folder  bool
}

// files returns the files of the image, sorted by path.
func (d definition) files(root, program string) ([]entry, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	entries := append([]entry{{path: "/" + d.program(), content: content, mode: 0o755}}, d.further...)
	for _, name := range d.links {
		entries = append(entries, entry{path: name, link: "/" + d.program(), mode: 0o777})
	}
	if d.config {
		pattern := filepath.Join(root, "config", "*.json")
		files, err := filepath.Glob(pattern)
		if err == nil && len(files) == 0 {
			err = fmt.Errorf("there is no file %s", pattern)
		}
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			entries = append(entries, entry{path: "/config/" + filepath.Base(file), content: content, mode: 0o644})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return entries, nil
}

var imageLine = regexp.MustCompile(`(?m)^\s*image: (resourcestack/([a-z-]+):\S+)$`)

// readTags returns the references of images in the manifests, by image.
func readTags(deploy string) (map[string]string, error) {
	manifest := filepath.Join(deploy, "install.yaml")
	text, err := os.ReadFile(manifest)
	if err != nil {
		return nil, err
	}
	tags := map[string]string{}
	for _, found := range imageLine.FindAllStringSubmatch(string(text), -1) {
		tag, name := found[1], found[2]
		if other := tags[name]; other != "" && other != tag {
			return nil, fmt.Errorf("%s names one image both %s and %s", manifest, other, tag)
		}
		tags[name] = tag
	}
	for _, d := range definitions {
		if tags[d.program()] == "" {
			return nil, fmt.Errorf("%s has no image resourcestack/%s", manifest, d.program())
		}
	}
	return tags, nil
}
