package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// recipe is one image.
type recipe struct {
	name   string
	tag    string // what it is called; empty: what the manifests call it
	module string // folder of the module that its only program is in
	source string // package of that program
	user   string // the default user of the container
	config bool   // it has the files of config/
	// flags that the program gets before its arguments, unless the user names a program.
	flags []string
	// links are further names of the program, which looks at the one it was called by.
	links []string
	// further are files beside the program and those of config/.
	further []entry
}

// sockets is where a node's sockets are mounted: /run and, as manifests of old write it,
// /var/run are one.
var sockets = []entry{{path: "/run", folder: true, mode: 0o755}, {path: "/var/run", link: "/run", mode: 0o777}}

// helpers are the programs that configurations of node-problem-detector call: all of
// them are the agent.
var helpers = map[string][]string{
	"/home/kubernetes/bin": {"health-checker", "log-counter"},
	"/bin":                 {"sh"},
	"/config/plugin":       {"check_ntp.sh", "network_problem.sh", "dns_problem.sh", "iptables_mode.sh"},
}

// agentFlags are those that the image of node-problem-detector has: a manifest with
// arguments and no command relies on the two monitors, and adds its own.
var agentFlags = []string{"--config.system-log-monitor=/config/kernel-monitor.json,/config/readonly-monitor.json"}

var recipes = []recipe{
	{name: "autohealer-agent", source: "./cmd/autohealer-agent", config: true, links: agentNames(), flags: agentFlags, further: sockets},
	{name: "autohealer-controller", source: "./cmd/autohealer-controller", user: "65532:65532"},
}

// pause holds a pod together. It is for the testbed, whose nodes have no registry, and
// made when it is named.
var pause = recipe{name: "pause", tag: "localhost/pause:1", module: "testbed", source: "./pause"}

// choose returns the images of these names, and without any those of the product.
func choose(names []string) ([]recipe, error) {
	if len(names) == 0 {
		return recipes, nil
	}
	var chosen []recipe
	for _, name := range names {
		all := append(slices.Clone(recipes), pause)
		at := slices.IndexFunc(all, func(r recipe) bool { return r.name == name })
		if at < 0 {
			return nil, fmt.Errorf("no image is called %q here; want autohealer-agent, autohealer-controller or pause", name)
		}
		chosen = append(chosen, all[at])
	}
	return chosen, nil
}

// agentNames are the paths under which the agent is found. Paths that begin with
// ./config are found as well, since it works in the root.
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

// entry is a file of an image, a folder, or a link to one.
type entry struct {
	path    string // from the root
	content []byte
	mode    int64
	link    string // where a link leads to; empty: it is none
	folder  bool
}

// files returns what is in the image, in the order of paths.
func (r recipe) files(root, program string) ([]entry, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	entries := append([]entry{{path: "/" + r.name, content: content, mode: 0o755}}, r.further...)
	for _, name := range r.links {
		entries = append(entries, entry{path: name, link: "/" + r.name, mode: 0o777})
	}
	if r.config {
		files, err := filepath.Glob(filepath.Join(root, "config", "*.json"))
		if err == nil && len(files) == 0 {
			err = errors.New("there is no config/*.json")
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

// readTags returns what the manifests call the images.
func readTags(deploy string) (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join(deploy, "install.yaml"))
	if err != nil {
		return nil, err
	}
	tags := map[string]string{}
	for _, found := range imageLine.FindAllStringSubmatch(string(text), -1) {
		tag, name := found[1], found[2]
		if other := tags[name]; other != "" && other != tag {
			return nil, fmt.Errorf("the manifests call one image both %s and %s", other, tag)
		}
		tags[name] = tag
	}
	for _, r := range recipes {
		if r.tag == "" && tags[r.name] == "" {
			return nil, fmt.Errorf("no manifest in %s has an image resourcestack/%s", deploy, r.name)
		}
	}
	return tags, nil
}
