package helpers

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestTheShellExecutesTheProgram(t *testing.T) {
	for name, c := range map[string]struct {
		command string
		want    []string
	}{
		"as charts do": {
			"exec /node-problem-detector --logtostderr --config.system-log-monitor=/config/kernel-monitor.json,/config/docker-monitor.json --prometheus-address=0.0.0.0 --prometheus-port=20257 --k8s-exporter-heartbeat-period=5m0s ",
			[]string{"/node-problem-detector", "--logtostderr", "--config.system-log-monitor=/config/kernel-monitor.json,/config/docker-monitor.json", "--prometheus-address=0.0.0.0", "--prometheus-port=20257", "--k8s-exporter-heartbeat-period=5m0s"},
		},
		"over lines":         {"exec /agent \\\n  --one \\\n  --two\n", []string{"/agent", "--one", "--two"}},
		"with variables":     {`exec /agent --hostname-override=$NODE_NAME "--a=${NODE_NAME} b"`, []string{"/agent", "--hostname-override=n1", "--a=n1 b"}},
		"with quotes":        {`exec /agent '' 'a $NODE_NAME' "a \"b\" \c" d\ e`, []string{"/agent", "", "a $NODE_NAME", `a "b" \c`, "d e"}},
		"with an empty name": {`exec /agent $NOTHING --x`, []string{"/agent", "--x"}},
	} {
		t.Run(name, func(t *testing.T) {
			var became []string
			n := here(nil, map[string]string{"NODE_NAME": "n1"})
			n.exec = func(path string, argv, _ []string) error {
				became = argv
				testkit.Same(t, path, argv[0], "the called program")
				return errors.New("no such file or directory")
			}
			code, line := call(t, n, "sh", "-c", c.command)
			testkit.NoDiff(t, cmp.Diff(c.want, became), "the arguments")
			testkit.Check(t, code == notFound && strings.Contains(line, "no such file or directory"), "a program that is not there: %d, %q", code, line)
		})
	}
}

func TestOtherCommandsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a script":                {[]string{"/custom/check.sh"}, "sh /custom/check.sh"},
		"nothing":                 {nil, "no shell"},
		"a command without exec":  {[]string{"-c", "/node-problem-detector --v=2"}, "only exec"},
		"a program without path":  {[]string{"-c", "exec node-problem-detector"}, "absolute path"},
		"nothing to exec":         {[]string{"-c", "exec"}, "only exec"},
		"an assignment":           {[]string{"-c", "A=b exec /agent"}, "only exec"},
		"two commands":            {[]string{"-c", "exec /agent; rm x"}, "';' is not supported"},
		"two lines":               {[]string{"-c", "exec /agent\n--x\n"}, "a second command"},
		"a pipe":                  {[]string{"-c", "exec /agent | tee log"}, "'|' is not supported"},
		"a substitution":          {[]string{"-c", "exec /agent $(hostname)"}, "names of variables"},
		"one in quotes":           {[]string{"-c", "exec /agent \"`hostname`\""}, "'`' is not supported"},
		"a variable with default": {[]string{"-c", "exec /agent ${A:-b}"}, "names of variables"},
		"a variable of two words": {[]string{"-c", "exec /agent $TWO"}, "double quotes"},
		"a pattern":               {[]string{"-c", "exec /agent /config/*.json"}, "'*' is not supported"},
		"an open quote":           {[]string{"-c", "exec /agent 'a"}, "is not closed"},
		"an open double quote":    {[]string{"-c", `exec /agent "a`}, "is not closed"},
		"a backslash at the end":  {[]string{"-c", `exec /agent \`}, "nothing follows"},
	} {
		t.Run(name, func(t *testing.T) {
			n := here(nil, map[string]string{"TWO": "a b"})
			n.exec = func(path string, _, _ []string) error {
				t.Errorf("became %s", path)
				return nil
			}
			code, line := call(t, n, "sh", c.args...)
			testkit.Check(t, code == notFound && strings.Contains(line, c.want) && strings.HasSuffix(line, noShell),
				"%d, %q: want %d, with %q and the way out", code, line, notFound, c.want)
		})
	}
}

// shellWords splits every command that it accepts like this machine's shell.
func TestWordsAreSplitLikeARealShell(t *testing.T) {
	printf := testkit.Value(exec.LookPath("printf")).Must(t)
	env := map[string]string{"NAME": "value", "BLANKS": " a  b\t", "_x1": `q"'\`, "EMPTY": ""}
	var environ []string
	for name, value := range env {
		environ = append(environ, name+"="+value)
	}
	pieces := rapid.SampledFrom([]string{
		"a", "--flag=x", "/p/q.json", ",", "=", ":", "%", "@", "ä", "\t", "\n", "\\\n", "\\ ", `\"`, `\$`, `\\`, `\'`, `\a`, "''", `""`,
		"'b c'", `'$NAME\'`, `"d e"`, `"\$NAME \" \\ \d"`, `"$NAME"`, `"${BLANKS}"`, `"$_x1"`, "$NAME", "${NAME}x", "$EMPTY", `"$EMPTY"`, "$BLANKS", "$_x1", "'", `"`, "$", "$(", "*", ";", "#", "~", "{", "!",
	})
	word := rapid.Custom(func(t *rapid.T) string { return strings.Join(rapid.SliceOfN(pieces, 1, 3).Draw(t, "pieces"), "") })
	taken, refused, several := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		command := "exec " + printf + ` '%s\0' ` + strings.Join(rapid.SliceOfN(word, 1, 3).Draw(t, "words"), " ")
		words, err := shellWords(command, func(name string) string { return env[name] })
		if err != nil {
			refused++
			return
		}
		taken++
		if len(words) > 4 {
			several++
		}
		sh := exec.CommandContext(t.Context(), "/bin/sh", "-c", command)
		sh.Env = environ
		out, err := sh.CombinedOutput()
		testkit.Require(t, err == nil, "%q is %q, and a shell says: %v %s", command, words, err, out)
		want := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		said := words[3:]
		testkit.Require(t, slices.Equal(said, want) || len(said) == 0 && slices.Equal(want, []string{""}), "%q is %q, for a shell %q", command, said, want)
	})
	t.Logf("saw %d commands taken, %d of several words, and %d refused", taken, several, refused)
	testkit.Check(t, several != 0 && refused != 0, "these commands prove nothing")
}

// The image is built in a separate Go module, which cannot import this package.
func TestTheImageLinksEveryProgramAndNoOther(t *testing.T) {
	definitions := testkit.Value(parser.ParseFile(token.NewFileSet(), "../../tools/images/definitions.go", nil, parser.SkipObjectResolution)).Must(t)
	var linked []string
	ast.Inspect(definitions, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "helpers" {
			return true
		}
		for _, folder := range spec.Values[0].(*ast.CompositeLit).Elts {
			for _, program := range folder.(*ast.KeyValueExpr).Value.(*ast.CompositeLit).Elts {
				name, err := strconv.Unquote(program.(*ast.BasicLit).Value)
				testkit.Check(t, err == nil, "%v", err)
				linked = append(linked, name)
			}
		}
		return false
	})
	slices.Sort(linked)
	testkit.NoDiff(t, cmp.Diff(slices.Sorted(maps.Keys(programs())), linked), "the programs and the links in the image (-is +links)")
}
