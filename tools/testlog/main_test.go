package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRun reads the output of a real `go test -json`.
func TestRun(t *testing.T) {
	t.Parallel()
	const head = "package sample\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Exit\n\n"
	for _, c := range []struct {
		name, code string
		want, not  []string
		err        string
	}{
		{
			name: "a package that passes",
			code: `func TestFine(t *testing.T) { t.Log("quiet") }
				func TestSkipped(t *testing.T) { t.Skip("quiet, too") }
				func TestMain(m *testing.M) { println("loud"); os.Exit(m.Run()) }`,
			want: []string{"ok  \tsample\t", "the slowest of 1 packages:\n", "the slowest of 2 tests:\n", "s  sample TestFine\n"},
			not:  []string{"quiet", "loud", "=== ", "PASS", "FAIL"},
		},
		{
			name: "a failed test beside another one",
			code: `func TestFine(t *testing.T) { t.Log("quiet") }
				func TestWrong(t *testing.T) {
					t.Run("part", func(t *testing.T) { t.Error("wrong part") })
					t.Run("other", func(t *testing.T) { t.Log("quiet, too") })
				}`,
			want: []string{"--- FAIL: TestWrong/part", "wrong part", "--- FAIL: TestWrong ", "FAIL\tsample\t", "the slowest of 2 tests:\n"},
			not:  []string{"quiet", "=== ", "ok ", "TestWrong/other"},
			err:  "1 packages failed",
		},
		{
			name: "a panic",
			code: `func TestFine(t *testing.T) { t.Log("quiet") }
				func TestWrong(t *testing.T) { t.Log("before"); panic("too bad") }`,
			want: []string{"before", "panic: too bad", "FAIL\tsample\t"},
			not:  []string{"quiet"},
			err:  "1 packages failed",
		},
		{
			name: "an exit within a test",
			code: `func TestWrong(t *testing.T) { println("last words"); os.Exit(3) }`,
			want: []string{"last words", "FAIL\tsample\t"},
			err:  "1 packages failed",
		},
		{
			name: "code that does not compile",
			code: `func TestWrong(t *testing.T) { missing() }`,
			want: []string{"undefined: missing", "FAIL\tsample [build failed]"},
			err:  "1 packages failed",
		},
		{
			name: "no test",
			code: `func helper(*testing.T) {}`,
			want: []string{"ok  \tsample\t", "[no tests to run]", "the slowest of 1 packages:\n"},
			not:  []string{" tests:\n"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			for name, text := range map[string]string{"go.mod": "module sample\n\ngo 1.26\n", "sample_test.go": head + c.code} {
				if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			command := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-json", ".")
			command.Dir, command.Env = folder, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
			lines, err := command.Output()
			if (err == nil) != (c.err == "") {
				t.Fatalf("%v\n%s", err, lines)
			}
			check(t, string(lines), c.want, c.not, c.err)
		})
	}
}

func TestLines(t *testing.T) {
	for _, c := range []struct {
		name, in  string
		want, not []string
		err       string
	}{
		{"nothing", "", nil, []string{"slowest"}, ""},
		{"text", "test: next\n{no event}\n{\"a\":1}\nend", []string{"test: next\n{no event}\n{\"a\":1}\nend"}, []string{"slowest"}, ""},
		{
			"a package that did not end",
			`{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Test":"TestA","Output":"before the end\n"}
`,
			[]string{"before the end\nFAIL\tp\tdid not end\n"}, nil, "1 packages failed",
		},
		{
			"progress",
			`{"Action":"pass","Package":"p","Test":"TestA","Elapsed":12.3}
{"Action":"pass","Package":"p","Test":"TestB","Elapsed":1.2}
{"Action":"pass","Package":"p","Elapsed":13.5}
`,
			[]string{"--- PASS: TestA (12.3s) in p\n", "    13.5s  p\n", "    12.3s  p TestA\n     1.2s  p TestB\n"}, []string{"PASS: TestB"}, "",
		},
	} {
		t.Run(c.name, func(t *testing.T) { check(t, c.in, c.want, c.not, c.err) })
	}
}

func check(t *testing.T, in string, want, not []string, wantErr string) {
	t.Helper()
	var out bytes.Buffer
	got := ""
	if err := run(strings.NewReader(in), &out); err != nil {
		got = err.Error()
	}
	if got != wantErr {
		t.Errorf("error %q, want %q", got, wantErr)
	}
	for _, text := range want {
		if !strings.Contains(out.String(), text) {
			t.Errorf("no %q", text)
		}
	}
	for _, text := range not {
		if strings.Contains(out.String(), text) {
			t.Errorf("found %q", text)
		}
	}
	if t.Failed() {
		t.Logf("input:\n%s\noutput:\n%s", in, &out)
	}
}
