package main

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// TestPushedImages pushes images to a real registry, pulls them with a real containerd, and runs
// their programs. The program of the other architecture cannot run here.
func TestPushedImages(t *testing.T) {
	registry, containerd := startRegistry(t), startContainerd(t)
	into := t.TempDir()
	build := func(platforms string, names ...string) string {
		t.Helper()
		var out bytes.Buffer
		args := append([]string{"-into", into, "-version", "v9", "-platforms", platforms, "-push", registry + "/team"}, names...)
		if err := run(t.Context(), args, &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	// One program for the other architecture is enough: compiling takes a minute.
	printed := build("linux/amd64,linux/arm64", "autohealer-agent") + build("linux/amd64", "autohealer-controller", "autohealer-agent-scripts")

	for _, test := range []struct {
		image, tag, program, user string
		platforms                 []string
		module                    string // in the SBOM
		script                    string // runs in the image
	}{
		{"autohealer-agent", "v0.1.0", "/autohealer-agent", "", []string{"amd64", "arm64"}, "google.golang.org/grpc", ""},
		{"autohealer-controller", "v0.1.0", "/autohealer-controller", "65532:65532", []string{"amd64"}, "sigs.k8s.io/controller-runtime", ""},
		{"autohealer-agent", "v0.1.0-scripts", "/autohealer-agent", "", []string{"amd64"}, "python3", pluginScript},
	} {
		t.Run(test.image+":"+test.tag, func(t *testing.T) {
			reference := registry + "/team/" + test.image + ":" + test.tag
			digest := regexp.MustCompile(`pushed ` + regexp.QuoteMeta(reference) + `@(sha256:\S+)`).FindStringSubmatch(printed)
			if digest == nil {
				t.Fatalf("the output has no digest of %s:\n%s", reference, printed)
			}
			for _, platform := range test.platforms {
				containerd.ctr(t, "images", "pull", "--plain-http", "--platform=linux/"+platform, "--snapshotter=native", reference)
				root := containerd.mount(t, "linux/"+platform, reference)
				program, err := elf.Open(filepath.Join(root, test.program))
				if err != nil {
					t.Fatal(err)
				}
				program.Close()
				if program.Section(".interp") != nil || program.Section(".dynamic") != nil {
					t.Errorf("the program for %s is not static", platform)
				}
				if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[platform]; program.Machine != want {
					t.Errorf("the program for %s is for %s", platform, program.Machine)
				}
				if platform != "amd64" {
					continue
				}
				chroot := func(args ...string) string {
					out, err := exec.CommandContext(t.Context(), "chroot", append([]string{root}, args...)...).CombinedOutput()
					if err != nil {
						t.Fatalf("%q: %v\n%s", args, err, out)
					}
					return string(out)
				}
				if out := chroot(test.program, "--version"); !strings.Contains(out, "v9") {
					t.Errorf("the program says %q", out)
				}
				if test.script != "" {
					if out := chroot("/bin/bash", "-euc", test.script); !strings.HasSuffix(out, "\ndone\n") {
						t.Errorf("the script says %q", out)
					}
				}
			}
			if listed := containerd.ctr(t, "images", "ls"); !strings.Contains(listed, reference) || !strings.Contains(listed, digest[1]) {
				t.Errorf("%s with %s is not in the list:\n%s", reference, digest[1], listed)
			}
			checkMetadata(t, reference, test.user, test.module, test.platforms)
		})
	}
	t.Run("a copy of the sources makes the same image", func(t *testing.T) {
		copied := t.TempDir()
		for _, name := range []string{"Makefile", "go.mod", "go.sum", "api", "catalog", "cmd", "deploy", "internal"} {
			if err := copyTo(filepath.Join(copied, name), filepath.Join("../..", name)); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		if err := run(t.Context(), []string{"-root", copied, "-into", t.TempDir(), "-version", "v9", "-platforms", "linux/amd64", "autohealer-controller"}, &out); err != nil {
			t.Fatal(err)
		}
		if again := strings.TrimSpace(out.String()); !strings.Contains(printed, again+"\n") {
			t.Errorf("the copy makes %s, the sources make\n%s", again, printed)
		}
	})
	t.Run("the archive has the same image", func(t *testing.T) {
		containerd.ctr(t, "images", "import", "--snapshotter=native", filepath.Join(into, "autohealer-agent.tar"))
		digests := map[string]bool{}
		for line := range strings.Lines(containerd.ctr(t, "images", "ls")) {
			if fields := strings.Fields(line); len(fields) > 2 && strings.HasSuffix(fields[0], "/autohealer-agent:v0.1.0") {
				digests[fields[2]] = true
			}
		}
		if len(digests) != 1 || !slices.Contains(strings.Fields(containerd.ctr(t, "images", "ls", "-q")), "docker.io/resourcestack/autohealer-agent:v0.1.0") {
			t.Errorf("the digests are %v", digests)
		}
	})
}

// copyTo copies a file or a folder.
func copyTo(to, from string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.CopyFS(to, os.DirFS(from))
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o600)
}

// pluginScript uses what plugins use, in all shells.
const pluginScript = `
test "$(readlink -f "$(command -v sh)")" = /usr/bin/dash; sh -c true
python3 -c 'import json, ssl, socket, subprocess, urllib.request; print(json.dumps({"a": 1}))'
echo '{"a": 2}' | jq .a | grep 2 | sed s/2/3/ | awk '{print $1 + 1}'
curl --version | grep https; find /etc -name passwd
for tool in diff host ip lspci lsmod nc ping ps flock; do command -v "$tool"; done
test -s /etc/ssl/certs/ca-certificates.crt; test -s /usr/share/doc/bash/copyright
echo done
`

// checkMetadata checks the labels and the user of an image, and that its SBOMs name a module.
func checkMetadata(t *testing.T, reference, user, module string, platforms []string) {
	t.Helper()
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, image := range manifest.Manifests {
		found = append(found, image.Platform.Architecture)
		config, err := index.Image(image.Digest)
		if err != nil {
			t.Fatal(err)
		}
		file, err := config.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if file.Config.Labels["org.opencontainers.image.version"] != "v9" || file.Config.User != user {
			t.Errorf("the labels are %v, the user is %q", file.Config.Labels, file.Config.User)
		}
		referrers, err := remote.Referrers(tag.Digest(image.Digest.String()))
		if err != nil {
			t.Fatal(err)
		}
		listed, err := referrers.IndexManifest()
		if err != nil || len(listed.Manifests) != 1 || listed.Manifests[0].ArtifactType != spdx {
			t.Fatalf("the referrers are %+v (%v)", listed, err)
		}
		document := readSBOM(t, tag.Digest(listed.Manifests[0].Digest.String()))
		if !strings.HasSuffix(document.DocumentNamespace, image.Digest.Hex) {
			t.Errorf("the SBOM of %s describes %s", image.Digest, document.DocumentNamespace)
		}
		if !slices.ContainsFunc(document.Packages, func(p *v2_3.Package) bool { return p.PackageName == module && p.PackageVersion != "" }) {
			t.Errorf("the SBOM of %s with %d packages lacks %s", reference, len(document.Packages), module)
		}
	}
	if !slices.Equal(found, platforms) {
		t.Errorf("the image is for %v, want %v", found, platforms)
	}
}

func readSBOM(t *testing.T, reference name.Digest) *v2_3.Document {
	t.Helper()
	artifact, err := remote.Image(reference)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := artifact.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("the artifact has %d layers (%v)", len(layers), err)
	}
	content, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	document := &v2_3.Document{}
	if err := spdxjson.ReadInto(content, document); err != nil {
		t.Fatal(err)
	}
	return document
}

// startRegistry runs a registry and returns its address.
func startRegistry(t *testing.T) string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf("version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: \"127.0.0.1:0\"}\n", t.TempDir())
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("../../bin/tools/registry", "serve", config)
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	log, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	runs(t, cmd)
	t.Cleanup(func() { writer.Close() })
	address := regexp.MustCompile(`listening on (127\.0\.0\.1:\d+)`)
	var lines []string
	for scanner := bufio.NewScanner(log); scanner.Scan(); {
		if found := address.FindStringSubmatch(scanner.Text()); found != nil {
			go func() { _, _ = io.Copy(io.Discard, log) }()
			return found[1]
		}
		lines = append(lines, scanner.Text())
	}
	t.Fatalf("the registry does not run:\n%s", strings.Join(lines, "\n"))
	return ""
}

// runs runs a program until the end of the test.
func runs(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// runtime is a running containerd.
type runtime struct{ socket string }

func startContainerd(t *testing.T) runtime {
	t.Helper()
	// The path of a socket must be short.
	folder, err := os.MkdirTemp("", "ctrd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	config := filepath.Join(folder, "config.toml")
	if err := os.WriteFile(config, []byte("version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := runtime{filepath.Join(folder, "socket")}
	runs(t, exec.Command("containerd", "--config", config, "--root", filepath.Join(folder, "root"), "--state", filepath.Join(folder, "state"), "--address", r.socket))
	for t.Context().Err() == nil {
		connection, err := (&net.Dialer{}).DialContext(t.Context(), "unix", r.socket)
		if err == nil {
			connection.Close()
			return r
		}
	}
	t.Fatal(context.Cause(t.Context()))
	return r
}

// ctr runs containerd's client.
func (r runtime) ctr(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ctr", append([]string{"--address", r.socket}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ctr %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// mount mounts the files of an image until the end of the test.
func (r runtime) mount(t *testing.T, platform, reference string) string {
	t.Helper()
	root := t.TempDir()
	r.ctr(t, "images", "mount", "--snapshotter=native", "--platform="+platform, reference, root)
	t.Cleanup(func() {
		if out, err := exec.Command("umount", root).CombinedOutput(); err != nil {
			t.Errorf("umount %s: %v\n%s", root, err, out)
		}
	})
	return root
}
