package filelog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// rotate renames the file this many times, writes a line to each new file, and keeps two
// rotated files.
func (g *fixture) rotate(times int) {
	g.t.Helper()
	for i := range times {
		g.rename()
		err := os.Remove(g.path + ".3")
		testkit.Require(g.t, err == nil || errors.Is(err, os.ErrNotExist), "%v", err)
		g.append(fmt.Sprintf("line %d\n", i))
	}
}

func (g *fixture) wantsGaps(want uint64) {
	g.t.Helper()
	testkit.Same(g.t, g.reader.Counts().Gaps, want, "gaps")
}

func TestDeletedUnreadFilesAreGaps(t *testing.T) {
	for _, c := range []struct {
		times          int
		withoutInotify bool
		read           string
		gaps           uint64
	}{
		{times: 2, read: "line 0\nline 1\n"},
		{times: 3, read: "line 0\nline 1\nline 2\n"}, // the file that was read is deleted
		{times: 4, read: "line 1\nline 2\nline 3\n", gaps: 1},
		{times: 12, read: "line 9\nline 10\nline 11\n", gaps: 9},
		{times: 2, withoutInotify: true, read: "line 0\nline 1\n"},
		{times: 4, withoutInotify: true, read: "line 1\nline 2\nline 3\n", gaps: 1},
	} {
		t.Run(fmt.Sprintf("%d rotations, without inotify %t", c.times, c.withoutInotify), func(t *testing.T) {
			g := newFixture(t)
			g.append("begin\n")
			if c.withoutInotify {
				g.reader.watch.close()
				g.reader.watch.inotify = nil
				old := time.Now().Add(-time.Hour) // rotated files are ordered by their modification time
				testkit.Must(t, os.Chtimes(g.path, old, old))
			}
			g.wants("begin\n")
			g.rotate(c.times)
			g.wants(c.read)
			g.wantsGaps(c.gaps)
		})
	}
}

// The kernel's event queue is limited. When it overflows, the kernel only reports that.
func TestEventQueueOverflowIsAGap(t *testing.T) {
	g := newFixture(t, "begin\n")
	text := testkit.Value(os.ReadFile("/proc/sys/fs/inotify/max_queued_events")).Must(t)
	var most int
	_, err := fmt.Sscan(string(text), &most)
	testkit.Require(t, err == nil && most <= 1<<20, "the kernel queues %q events: the test needs a limit that it can exceed", text)
	other := g.path + ".new"
	for range most/2 + 1 {
		testkit.Must(t, errors.Join(os.WriteFile(other, nil, 0o600), os.Remove(other)))
	}
	g.rotate(4)
	g.wants("line 1\nline 2\nline 3\n")
	g.wantsGaps(1)
	// The reader notices the next rotation again.
	g.rotate(1)
	g.wants("line 0\n")
	g.wantsGaps(1)
}

func TestDeletedEmptyFilesAreNoGap(t *testing.T) {
	g := newFixture(t, "begin\n")
	for range 5 {
		g.rename()
		err := os.Remove(g.path + ".3")
		testkit.Require(t, err == nil || errors.Is(err, os.ErrNotExist), "%v", err)
		g.says("")
	}
	g.remove()
	g.wants("")
	g.wantsGaps(0)
}

func TestDeletedTruncatedFileIsAGap(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			g := newFixture(t, "one\n")
			g.append("two\n")
			g.copyAndTruncate(g.path + ".1")
			g.append("three\n")
			if restart {
				if err := g.reader.open.close(); err != nil { // so that its inode can be reused
					t.Fatal(err)
				}
				// Not before the next tick of the disk's clock: a file with the same inode then has
				// a later time of creation.
				first := testkit.Value(statFile(g.path)).Must(t)
				for first.born != 0 && born(unix.AT_FDCWD, g.touch()) == first.born {
				}
			}
			g.remove()
			g.append("four\n")
			if restart {
				g.open()
			}
			g.wants("two\nfour\n")
			n := g.reader.Counts().Gaps
			testkit.Check(t, n != 0, "no gap was counted")
		})
	}
}

// touch creates another file, and returns its path.
func (g *fixture) touch() string {
	g.t.Helper()
	path := filepath.Join(g.t.TempDir(), "other")
	testkit.Must(g.t, os.WriteFile(path, nil, 0o600))
	return path
}

// Archivers copy a rotated file to another name with a new inode.
func TestCopyOfARotatedFileIsNotReadAgain(t *testing.T) {
	lines := strings.Repeat("a line of the first file\n", 100)
	for _, c := range []struct {
		name    string
		copied  int  // number of copied bytes, if the copy is unfinished
		between bool // the next file was created before the copy
		removed bool // the original is deleted
		restart bool
	}{
		{name: "at once"},
		{name: "half", copied: 700},
		{name: "at once, and the original is removed", removed: true},
		{name: "later", between: true},
		{name: "later, and the original is removed", between: true, removed: true},
		{name: "later, and the original is removed, and the reader was restarted", between: true, removed: true, restart: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newFixture(t, lines)
			g.rename()
			if c.between {
				g.says("next\n")
			}
			text := testkit.Value(os.ReadFile(g.path + ".1")).Must(t)
			if c.copied > 0 {
				text = text[:c.copied]
			}
			testkit.Must(t, os.WriteFile(g.path+"-20260131", text, 0o600))
			if c.removed {
				testkit.Must(t, os.Remove(g.path+".1"))
			}
			if c.restart {
				g.open()
			}
			want := "last\n"
			if c.between {
				g.rename()
			} else {
				g.append("next\n")
				want = "next\n" + want
			}
			g.append("last\n")
			g.wants(want)
			g.wantsGaps(0)
		})
	}
}

func TestUnreadFilesFollowInotifyEvents(t *testing.T) {
	create := func(name string) func(*unread) { return func(u *unread) { u.created(name) } }
	remove := func(name string) func(*unread) { return func(u *unread) { u.deleted(name) } }
	move := func(from, to string) func(*unread) {
		return func(u *unread) {
			if from != "" {
				u.movedFrom(from, 7)
			}
			if to != "" {
				u.movedTo(to, 7)
			}
			u.settle()
			u.settle()
		}
	}
	for _, c := range []struct {
		name string
		told []func(*unread)
		lost int
	}{
		{"the file that was read is rotated away and removed", []func(*unread){move("log", "log.1"), create("log"), remove("log.1")}, 0},
		{"the next is removed", []func(*unread){move("log", "log.1"), create("log"), remove("log")}, 1},
		{"the next is rotated and removed", []func(*unread){move("log", "log.1"), create("log"), move("log", "log.2"), remove("log.2")}, 1},
		{"the next is overwritten", []func(*unread){move("log", "log.1"), create("log"), move("log", "log.1"), create("log"), move("log", "log.1")}, 1},
		{"the next is moved to another folder", []func(*unread){move("log", ""), create("log"), move("log", "")}, 1},
		{"the next is moved to a name that is not looked at", []func(*unread){move("log", "log.1"), create("log"), move("log", "backup")}, 1},
		{"the next comes under another name", []func(*unread){move("log", "log.1"), create("new"), move("new", "log"), remove("log")}, 1},
		{"the next comes from another folder", []func(*unread){move("log", "log.1"), move("", "log"), remove("log")}, 1},
		{"the file that was read is truncated, and then removed", []func(*unread){create("log.1"), remove("log")}, 1},
		{"files of others", []func(*unread){create("mail"), remove("mail"), create("log.1.gz"), move("mail.1", "mail.2")}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := unread{base: "log"}
			for _, tell := range c.told {
				tell(&u)
			}
			testkit.Same(t, u.take(), c.lost, "lost lines")
		})
	}
}

// A file that was seen empty may have got lines since.
func TestDeletedFileThatHasGrownIsAGap(t *testing.T) {
	g := newFixture(t, "begin\n")
	g.rename()
	g.says("")
	g.append("lost\n")
	g.remove()
	g.says("next\n")
	g.wantsGaps(1)
}
