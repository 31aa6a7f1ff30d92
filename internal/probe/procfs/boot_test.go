package procfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// proc returns a proc file system with some files.
func proc(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return root
}

const (
	idFile = "sys/kernel/random/boot_id"
	id     = "9697be3e-575b-43d5-8c08-c709a6f84c41\n"
	stat   = "cpu  7 0 5\nintr 1 2 3\nctxt 42\nbtime 1794707477\nprocesses 4\n"
)

func TestReadBoot(t *testing.T) {
	got, err := ReadBoot(proc(t, map[string]string{idFile: id, "stat": stat}))
	want := Boot{ID: strings.TrimSpace(id), Time: time.Unix(1794707477, 0)}
	testkit.Check(t, err == nil && got == want, "it is %v, want %v: %v", got, want, err)
}

func TestAMissingValueIsAnError(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no id":           {map[string]string{"stat": stat}, idFile},
		"an empty id":     {map[string]string{idFile: "\n", "stat": stat}, idFile},
		"no stat":         {map[string]string{idFile: id}, "stat"},
		"no time":         {map[string]string{idFile: id, "stat": "cpu 1\nxbtime 7\n"}, "btime"},
		"a time of words": {map[string]string{idFile: id, "stat": "btime soon\n"}, "soon"},
		"half a file":     {map[string]string{idFile: id, "stat": "cpu 1\nbtime "}, "btime"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadBoot(proc(t, test.files))
			testkit.Check(t, err != nil && got == (Boot{}) && strings.Contains(err.Error(), test.want),
				"it is %v, and the error %v does not name %q", got, err, test.want)
		})
	}
	if _, err := ReadBoot(filepath.Join(t.TempDir(), "nowhere")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the error is %v", err)
	}
}

// The kernel's value is the difference of its own clocks.
func TestReadBootOnThisMachine(t *testing.T) {
	first := testkit.Value(ReadBoot("")).Must(t)
	var up unix.Timespec
	testkit.Must(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &up))
	off := time.Since(first.Time) - time.Duration(up.Nano())
	testkit.Check(t, off.Abs() <= 2*time.Second, "it began at %s, which is off by %s", first.Time, off)
	second, err := ReadBoot("/proc")
	testkit.Check(t, err == nil && second == first, "it is %v, and then %v: %v", first, second, err)
}
