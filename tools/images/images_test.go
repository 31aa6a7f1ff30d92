package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// plant puts files into a folder, of a time that no other has.
func plant(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-time.Duration(len(root)+len(name)) * time.Hour)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

var amd64 = v1.Platform{OS: "linux", Architecture: "amd64"}

// assembled returns the image of the agent from a folder.
func assembled(t *testing.T, root string) v1.Image {
	t.Helper()
	agent := definitions[0]
	files, err := agent.files(root, filepath.Join(root, "program"))
	if err != nil {
		t.Fatal(err)
	}
	image, err := assemble(agent, "v1", amd64, [][]entry{files})
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// archived writes that image to an archive, and returns its bytes.
func archived(t *testing.T, root string) []byte {
	t.Helper()
	index, err := indexOf([]platformImage{{Image: assembled(t, root), platform: amd64}})
	archive := filepath.Join(t.TempDir(), "agent.tar")
	if err == nil {
		err = writeArchive(archive, "resourcestack/autohealer-agent:v1", index)
	}
	content, err2 := os.ReadFile(archive)
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return content
}

func TestTheSameFilesMakeTheSameImage(t *testing.T) {
	files := map[string]string{"program": "#!", "config/a.json": "{}", "config/b.json": "[]"}
	first := archived(t, plant(t, files))
	if !bytes.Equal(first, archived(t, plant(t, files))) {
		t.Error("two images of the same files differ")
	}
	files["config/b.json"] = "{}"
	if bytes.Equal(first, archived(t, plant(t, files))) {
		t.Error("images of different files are the same")
	}
}

func TestTheSameSourcesMakeTheSameProgram(t *testing.T) {
	sources := map[string]string{"go.mod": "module example.com/x\n\ngo 1.26.0\n", "main.go": "package main\n\nvar version string\n\nfunc main() { println(version) }\n",
		"tagged.go": "//go:build !lean\n\npackage main\n\nfunc init() { println(`this file is left out by the tag`) }\n"}
	var programs [][]byte
	for _, version := range []string{"v1", "v1", "v2"} {
		to := filepath.Join(t.TempDir(), "x")
		if err := compile(t.Context(), plant(t, sources), ".", "lean", version, amd64, to); err != nil {
			t.Fatal(err)
		}
		program, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		programs = append(programs, program)
	}
	if !bytes.Equal(programs[0], programs[1]) {
		t.Error("the bytes of a program depend on its folder")
	}
	if bytes.Equal(programs[0], programs[2]) {
		t.Error("programs of two versions are the same")
	}
	if bytes.Contains(programs[0], []byte("left out by the tag")) {
		t.Error("the program was compiled without the tag")
	}
}

// A plus sign in the URL of a package means a space.
func TestTheSBOMEscapesVersions(t *testing.T) {
	program, err := os.Executable() // its modules include docker/cli, whose version ends in +incompatible
	if err != nil {
		t.Fatal(err)
	}
	image := assembled(t, plant(t, map[string]string{"program": "#!", "config/a.json": "{}"}))
	content, err := describe("autohealer-agent", "v1+x", image, program, []debianPackage{{name: "bash", version: "5+b1", architecture: "amd64"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"pkg:golang/github.com/docker/cli@v`, `%2Bincompatible"`, `@v1%2Bx"`, `"pkg:deb/debian/bash@5%2Bb1?arch=amd64"`} {
		if !bytes.Contains(content, []byte(want)) {
			t.Errorf("the SBOM lacks %s:\n%s", want, content)
		}
	}
}

func TestProgramsAreBuiltAsTheMakefileBuildsThem(t *testing.T) {
	if tag, err := readBuildTag("../../Makefile"); err != nil || tag != "grpcnotrace" {
		t.Errorf("the tag is %q (%v)", tag, err)
	}
	other := filepath.Join(plant(t, map[string]string{"Makefile": "# TAGS := x\n"}), "Makefile")
	if _, err := readBuildTag(other); err == nil || !strings.Contains(err.Error(), other+" has no line TAGS") {
		t.Errorf("without the line the error is %v", err)
	}
}

// What docs/how-to/migrate-from-node-problem-detector.md promises to users of node-problem-detector.
func TestTheAgentIsFoundUnderItsOldNames(t *testing.T) {
	image := assembled(t, plant(t, map[string]string{"program": "the agent", "config/kernel-monitor.json": "{}"}))
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers (%v)", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	found := map[string]string{}
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if !header.ModTime.Equal(time.Unix(0, 0)) || header.Uid != 0 || header.Uname != "" {
			t.Errorf("%s depends on the machine: %v, %d %q", header.Name, header.ModTime, header.Uid, header.Uname)
		}
		found["/"+header.Name] = fmt.Sprintf("%c %o %s%s", header.Typeflag, header.Mode, text, header.Linkname)
	}
	want := map[string]string{
		"/autohealer-agent":           "0 755 the agent",
		"/config/kernel-monitor.json": "0 644 {}",
		"/config/":                    "5 755 ",
		"/home/kubernetes/bin/":       "5 755 ",
		"/run/":                       "5 755 ",
		"/var/":                       "5 755 ",
		"/var/run":                    "2 777 /run", // where its manifests mount the bus
	}
	for _, name := range []string{
		"/node-problem-detector", "/bin/sh", "/home/kubernetes/bin/health-checker", "/home/kubernetes/bin/log-counter",
		"/config/plugin/check_ntp.sh", "/config/plugin/network_problem.sh", "/config/plugin/dns_problem.sh", "/config/plugin/iptables_mode.sh",
	} {
		want[name] = "2 777 /autohealer-agent"
	}
	for name, is := range want {
		if found[name] != is {
			t.Errorf("%s is %q, want %q", name, found[name], is)
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	entry := []string{"/autohealer-agent", "--config.system-log-monitor=/config/kernel-monitor.json,/config/readonly-monitor.json"}
	if c := config.Config; c.WorkingDir != "/" || !slices.Equal(c.Entrypoint, entry) || !config.Created.IsZero() {
		t.Errorf("the image has %+v, and was created at %v", c, config.Created)
	}
}

func TestTheFilesThatTheImageStartsWithAreInIt(t *testing.T) {
	files, err := definitions[0].files("../..", os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, flag := range agentFlags {
		_, paths, _ := strings.Cut(flag, "=")
		for path := range strings.SplitSeq(paths, ",") {
			named++
			if !slices.ContainsFunc(files, func(e entry) bool { return e.path == path }) {
				t.Errorf("%s is not in the image", path)
			}
		}
	}
	if named != 2 {
		t.Errorf("%d files are named", named)
	}
}

// A DaemonSet that changes its image names them still.
func TestTheImageHasEveryFileOfNodeProblemDetector(t *testing.T) {
	names, err := filepath.Glob("../../internal/probe/config/testdata/node-problem-detector/*.json")
	if err != nil || len(names) != 19 {
		t.Fatalf("%d files of node-problem-detector are known, want 19 (%v)", len(names), err)
	}
	files, err := definitions[0].files("../..", "main.go")
	if err != nil {
		t.Fatal(err)
	}
	programs := regexp.MustCompile(`"path": "\.?(/[^"]+)"`)
	has := func(path string) bool {
		return slices.ContainsFunc(files, func(e entry) bool { return e.path == path })
	}
	for _, name := range names {
		if path := "/config/" + filepath.Base(name); !has(path) {
			t.Errorf("%s is not in the image", path)
		}
	}
	called := 0
	for _, file := range files {
		for _, found := range programs.FindAllSubmatch(file.content, -1) {
			if called++; !has(string(found[1])) {
				t.Errorf("%s calls %s, which is not in the image", file.path, found[1])
			}
		}
	}
	t.Logf("%d files, %d calls of programs", len(files), called)
	if called == 0 {
		t.Error("no file calls a program")
	}
}

func TestImagesAreCalledWhatTheManifestsCallThem(t *testing.T) {
	tags, err := readTags("../../deploy")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range definitions {
		if !strings.HasPrefix(r.reference(tags), "resourcestack/"+r.program()+":v") {
			t.Errorf("%s is called %q", r.name, r.reference(tags))
		}
	}
	const agent, controller = "image: resourcestack/autohealer-agent:v1\n", "image: resourcestack/autohealer-controller:v1\n"
	for _, test := range []struct {
		name, want string
		files      map[string]string
	}{
		{"two names of one image", "both", map[string]string{"install.yaml": agent + strings.Replace(agent, "v1", "v2", 1) + controller}},
		{"no name", "resourcestack/autohealer-controller", map[string]string{"install.yaml": agent}},
	} {
		if _, err := readTags(plant(t, test.files)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: the error is %v, want it to say %q", test.name, err, test.want)
		}
	}
}

func TestPackagesAreTakenFromDebianOnly(t *testing.T) {
	for content, want := range map[string]string{
		"NAME=\"Debian\"\nID=debian\n": "",
		"ID=ubuntu\nID_LIKE=debian\n":  "has no line ID=debian: build the image on Debian, or name other images",
	} {
		err := requireDebian(filepath.Join(plant(t, map[string]string{"os-release": content}), "os-release"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: the error is %v, want %q", content, err, want)
		}
	}
}

func TestOnlyWhatIsNamedIsMade(t *testing.T) {
	for _, test := range []struct {
		names []string
		want  string
	}{
		{nil, "autohealer-agent autohealer-controller"},
		{[]string{"pause", "autohealer-agent"}, "pause autohealer-agent"},
		{[]string{"agent"}, `there is no image "agent"`},
	} {
		var made []string
		chosen, err := choose(test.names)
		for _, r := range chosen {
			made = append(made, r.name)
		}
		if got := strings.Join(made, " "); got != test.want && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%q makes %q (%v), want %q", test.names, got, err, test.want)
		}
	}
}
