package procfs_test

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/probe/procfs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// ParseMounts returns what the kernel could have written.
func TestParseMounts(t *testing.T) {
	kernel := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`, "#", `\043`)
	odd := 0
	rapid.Check(t, func(t *rapid.T) {
		path := rapid.StringMatching(`/[a-z0-9 \\\t\n#\x0b\x{85}\x{a0}\x{2003}ü-]{0,12}`)
		want := procfs.Mount{
			Device: "98:0", Root: path.Draw(t, "root"), Point: path.Draw(t, "point"), Kind: "ext4",
			Source:  rapid.SampledFrom([]string{"", "-", "none", "/dev/my disk", "//host/my share"}).Draw(t, "source"),
			Options: []string{"rw", "noatime"}, Super: []string{"rw", "errors=continue"},
		}
		if strings.ContainsAny(want.Point, " \\\t\n#\v\u0085\u00a0\u2003") {
			odd++
		}
		line := fmt.Sprintf("36 35 98:0 %s %s rw,noatime %s- ext4 %s rw,errors=continue\n", kernel.Replace(want.Root), kernel.Replace(want.Point),
			rapid.SampledFrom([]string{"", "shared:1 ", "master:2 propagate_from:3 "}).Draw(t, "optional"), kernel.Replace(want.Source))
		got, err := procfs.ParseMounts([]byte(line + line))
		testkit.Require(t, err == nil && reflect.DeepEqual(got, []procfs.Mount{want, want}), "%q became %q, %v", line, got, err)
	})
	t.Logf("saw %d odd paths", odd)
	testkit.Check(t, odd != 0, "no path was odd")
}

func TestParseMountsOnThisMachine(t *testing.T) {
	text := testkit.Value(os.ReadFile("/proc/self/mountinfo")).Must(t)
	mounts, err := procfs.ParseMounts(text)
	testkit.Check(t, err == nil && len(mounts) == strings.Count(string(text), "\n"), "%d mounts, %v", len(mounts), err)
}

func TestParseRefusesInvalidTables(t *testing.T) {
	const good = "36 35 98:0 / / rw - ext4 /dev/root rw\n"
	for text, says := range map[string]string{
		"":                                      "the mount table is empty",
		good + "\n":                             "line 2 is not a line",
		"36 35 98:0 / / rw ext4 /dev/root rw\n": "line 1 is not a line",
		"36 35 98:0 / / rw - ext4 /dev/root\n":  "line 1 is not a line",
		"36 35 98:0 / / - ext4 /dev/root rw\n":  "line 1 is not a line",
	} {
		_, err := procfs.ParseMounts([]byte(text))
		testkit.Check(t, err != nil && strings.Contains(err.Error(), says), "%q: %v, want %q", text, err, says)
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add([]byte("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"))
	f.Add([]byte("1 2 0:1 / /a rw -  \n- - - - - - - - -\n"))
	f.Add([]byte(`1 2 0:1 /a\040b\13 /\777 rw - tmpfs  rw`))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		mounts, err := procfs.ParseMounts(text)
		testkit.MustBeSame(t, (err == nil), (len(mounts) > 0), "%+v and %v", mounts, err)
		for _, m := range mounts {
			testkit.Require(t, len(m.Point)+len(m.Root)+len(m.Source) <= len(text), "%q has grown to %q", text, m)
		}
	})
}
