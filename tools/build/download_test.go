package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// script is what the maintainers publish in place of the miniature.
const script = "#!/bin/sh\necho published\n"

// archive returns a .tar.gz with a file.
func archive(t *testing.T, name, content string) []byte {
	t.Helper()
	var text bytes.Buffer
	zipped := gzip.NewWriter(&text)
	files := tar.NewWriter(zipped)
	if err := files.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := files.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := files.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

func sumOf(text []byte) string { sum := sha256.Sum256(text); return hex.EncodeToString(sum[:]) }

// A program is downloaded from a server with the paths of the official ones. Whatever goes wrong, it
// is compiled in its place, and the output says why.
func TestDownload(t *testing.T) {
	platform := runtime.GOOS + "/" + runtime.GOARCH
	plain := "/dl.k8s.io/release/v1/bin/" + platform + "/tiny"
	packed := "/github.com/tiny/releases/download/v1/tiny-v1-" + runtime.GOOS + "-" + runtime.GOARCH + ".tar.gz"
	zipped := archive(t, "tiny-v1-"+runtime.GOOS+"-"+runtime.GOARCH+"/tiny", script)
	official := release{host: "dl.k8s.io", path: "/release/v1/bin/OS/ARCH/tiny", sums: "/release/v1/bin/OS/ARCH/tiny.sha256"}
	inArchive := release{
		host: "github.com", path: "/tiny/releases/download/v1/tiny-v1-OS-ARCH.tar.gz", sums: "/tiny/releases/download/v1/SHA256SUMS", file: "tiny-v1-OS-ARCH/tiny",
	}
	sums := "00 other.tar.gz\n" + sumOf(zipped) + "  " + filepath.Base(packed) + "\n"
	for name, test := range map[string]struct {
		release
		files map[string]string // by path; a content with the prefix cut: is one byte too short
		says  string            // why it is not downloaded; empty if it is
	}{
		"a program":                  {official, map[string]string{plain: script, plain + ".sha256": sumOf([]byte(script))}, ""},
		"an archive":                 {inArchive, map[string]string{packed: string(zipped), "/github.com/tiny/releases/download/v1/SHA256SUMS": sums}, ""},
		"a wrong checksum":           {official, map[string]string{plain: "#!/bin/sh\n", plain + ".sha256": sumOf([]byte(script))}, "its SHA-256 checksum is " + sumOf([]byte("#!/bin/sh\n"))},
		"a truncated program":        {official, map[string]string{plain: "cut:" + script, plain + ".sha256": sumOf([]byte(script))}, "unexpected EOF"},
		"a truncated archive":        {inArchive, map[string]string{packed: "cut:" + string(zipped), "/github.com/tiny/releases/download/v1/SHA256SUMS": sums}, "unexpected EOF"},
		"another archive":            {inArchive, map[string]string{packed: string(archive(t, "other", script)), "/github.com/tiny/releases/download/v1/SHA256SUMS": sums}, "the archive does not contain tiny-v1-"},
		"a page instead of archives": {inArchive, map[string]string{packed: "<html>" + strings.Repeat(" ", 20), "/github.com/tiny/releases/download/v1/SHA256SUMS": sums}, "gzip"},
		"no checksum of the file":    {inArchive, map[string]string{packed: string(zipped), "/github.com/tiny/releases/download/v1/SHA256SUMS": "00 other.tar.gz\n"}, "SHA256SUMS has no checksum of tiny-v1-"},
		"nothing":                    {official, nil, ".sha256: 404 Not Found"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				content, is := test.files[r.URL.Path]
				if !is {
					http.NotFound(w, r)
					return
				}
				text, isCut := strings.CutPrefix(content, "cut:")
				w.Header().Set("Content-Length", strconv.Itoa(len(text)))
				if isCut {
					text = text[:len(text)-1]
				}
				fmt.Fprint(w, text)
			}))
			defer server.Close()
			t.Setenv(downloadVariable, "1")
			t.Setenv(mirrorVariable, server.URL+"/")
			is, said := downloaded(t, test.release)
			if is != (test.says == "") || !strings.Contains(said, test.says) || is == strings.Contains(said, "not downloaded, so it is compiled") {
				t.Errorf("downloaded: %t, want %q in the output:\n%s", is, test.says, said)
			}
		})
	}

	t.Run("no network", func(t *testing.T) {
		server := httptest.NewServer(nil)
		server.Close()
		t.Setenv(downloadVariable, "1")
		t.Setenv(mirrorVariable, server.URL)
		if is, said := downloaded(t, official, inArchive); is || strings.Count(said, "cannot be reached: ") != 2 {
			t.Errorf("downloaded: %t, want the reason for each of two programs in the output:\n%s", is, said)
		}
	})
	t.Run("a stalled download", func(t *testing.T) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(script)))
			fmt.Fprint(w, script[:4])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}))
		defer server.Close()
		d := newDownloader()
		d.stall = 100 * time.Millisecond
		body, _, err := d.get(t.Context(), server.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		if text, err := io.ReadAll(body); err == nil || !strings.Contains(err.Error(), "has sent nothing for 100ms") {
			t.Errorf("%q arrived, with the error %v", text, err)
		}
		if _, _, err := d.get(t.Context(), server.URL); err == nil || !strings.Contains(err.Error(), "has sent nothing for 100ms") {
			t.Errorf("the host is tried again, with the error %v", err)
		}
	})
	t.Run("not asked for", func(t *testing.T) {
		t.Setenv(downloadVariable, "0")
		t.Setenv(mirrorVariable, "http://127.0.0.1:1")
		if is, said := downloaded(t, official); is || strings.Contains(said, "not downloaded") {
			t.Errorf("downloaded: %t, and the output is:\n%s", is, said)
		}
	})
}

// downloaded builds a program of each release, and reports whether the first was downloaded, and the
// output. The program is complete in any case, and a second build does nothing.
func downloaded(t *testing.T, releases ...release) (is bool, said string) {
	t.Helper()
	s := miniature(t)
	s.programs = nil
	for i, r := range releases {
		s.programs = append(s.programs, program{name: fmt.Sprintf("tiny%d", i), pkg: ".", release: &r})
	}
	said = output(t, func() { mustBuild(t, s) })
	for _, p := range s.programs {
		if path := filepath.Join(s.out, p.name); !isExecutable(path) {
			t.Errorf("%s is not a program", path)
		}
	}
	if again := output(t, func() { mustBuild(t, s) }); again != "" {
		t.Errorf("the second build is not quiet:\n%s", again)
	}
	for _, name := range names(t, s.out) {
		if strings.Contains(name, ".building.") {
			t.Errorf("%s was left behind", name)
		}
	}
	text, err := os.ReadFile(filepath.Join(s.out, "tiny0"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text) == script, said
}

// output returns what a function prints.
func output(t *testing.T, do func()) string {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "output")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stdout := os.Stdout
	os.Stdout = file
	defer func() { os.Stdout = stdout }()
	do()
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Every program of both control planes that has a release names the version of the module, and a
// checksum.
func TestReleases(t *testing.T) {
	published := 0
	for _, p := range slices.Concat(sets["testbed"].programs, sets["testbed-oldest"].programs) {
		if p.release == nil {
			continue
		}
		published++
		for _, path := range []string{p.release.path, p.release.sums} {
			if !slices.ContainsFunc([]string{kubernetesVersion, oldestKubernetesVersion, etcdVersion}, func(version string) bool { return strings.Contains(path, version) }) {
				t.Errorf("%s: %s has no version", p.name, path)
			}
		}
		t.Setenv(mirrorVariable, "")
		if url := p.release.url(p.release.path); !regexp.MustCompile(`^https://(dl\.k8s\.io|github\.com)/.*` + runtime.GOARCH).MatchString(url) {
			t.Errorf("%s is downloaded from %s", p.name, url)
		}
	}
	if published != 9 {
		t.Errorf("%d programs can be downloaded, want 9", published)
	}
	pins, err := os.ReadFile("../../testbed/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := "go.etcd.io/etcd/server/v3 " + etcdVersion; !strings.Contains(string(pins), want) {
		t.Errorf("testbed/go.mod does not require %s", want)
	}
}
