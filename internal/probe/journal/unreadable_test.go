package journal_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/journal"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// folder is a journal directory with constructed files.
type folder struct {
	t    *testing.T
	path string
}

func newFolder(t *testing.T) folder {
	t.Helper()
	return folder{t, filepath.Join(t.TempDir(), "journal")}
}

func (f folder) place(name string) string {
	f.t.Helper()
	path := filepath.Join(f.path, name)
	testkit.Must(f.t, os.MkdirAll(filepath.Dir(path), 0o755))
	_ = os.Remove(path)
	return path
}

func (f folder) write(name string, m *image, id byte) {
	f.t.Helper()
	m.b[24], m.b[72] = id, id // the IDs of the file and of the sequence
	testkit.Must(f.t, os.WriteFile(f.place(name), m.b, 0o644))
}

// lock makes a path unreadable, even for root: it becomes a link to itself.
func (f folder) lock(name string) {
	f.t.Helper()
	path := f.place(name)
	testkit.Must(f.t, os.Symlink(path, path))
}

// wantsToWait fails the test if Next returns anything.
func (f *follower) wantsToWait() {
	f.t.Helper()
	err := f.one(100 * time.Millisecond)
	testkit.Check(f.t, errors.Is(err, context.DeadlineExceeded), "the next call returned %v, want it to wait", err)
}

// wantsUnreadable fails the test if Next does not return that a path is unreadable.
func (f *follower) wantsUnreadable(path string) {
	f.t.Helper()
	err := f.one(10 * time.Second)
	testkit.Check(f.t, err != nil && !errors.Is(err, logs.ErrNotExist) && !errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), path),
		"got %v, want an error that %s is unreadable", err, path)
}

func TestUnreadableJournalIsReportedOnce(t *testing.T) {
	t.Parallel()
	const live, archived = "system.journal", "system@1.journal"
	for name, test := range map[string]struct {
		spoil func(f folder)
		read  int // entries that are read before the error
		path  string
	}{
		"its folder cannot be listed": {func(f folder) { f.lock("") }, 0, "journal"},
		"its file cannot be opened":   {func(f folder) { f.lock(live) }, 0, live},
		"none of its files can":       {func(f folder) { f.lock(live); f.lock(archived) }, 0, live},
		"only one put aside is there": {func(f folder) { f.lock(archived) }, 0, archived},
		"its file is something else": {func(f folder) {
			m := sample(true, 2)
			m.b[0] = 'x'
			f.write(live, m, 'a')
		}, 0, live},
		"its file is a maze": {func(f folder) {
			m := sample(true, 2)
			m.put(120, 1<<40)
			f.write(live, m, 'a')
		}, 0, live},
		"only what was put aside can": {func(f folder) { f.lock(live); f.write(archived, sample(true, 3), 'b') }, 3, live},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := newFolder(t)
			test.spoil(folder)
			var said bytes.Buffer
			f := follow(t, journal.Config{Path: folder.path, Identifier: "a", Log: slog.New(slog.NewTextHandler(&said, nil))})
			f.until(test.read)
			for err := error(nil); test.read > 0 && err == nil; { // skip the position after them
				err = f.one(50 * time.Millisecond)
			}
			f.wantsUnreadable(test.path)
			f.wantsToWait()
			testkit.Check(t, test.read != 0 || said.Len() == 0, "the error of Next was logged as well: %s", said.String())

			// A new reader returns the error at once.
			g := follow(t, journal.Config{Path: folder.path, Identifier: "a", From: f.next})
			g.wantsUnreadable(test.path)
			g.stop()

			testkit.Must(t, os.RemoveAll(folder.path))
			var err error
			for err == nil { // there may be a position after the last file
				err = f.one(10 * time.Second)
			}
			testkit.Check(t, errors.Is(err, logs.ErrNotExist), "after it was deleted: %v, want %v", err, logs.ErrNotExist)
			folder.write(live, sample(true, 2), 'c')
			f.until(test.read + 2)
			f.quiet()
		})
	}
}

func TestUnreadablePartIsSkipped(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(f folder){
		"a file that grows":       func(f folder) { f.lock("user-1000.journal") },
		"a file put aside":        func(f folder) { f.lock("system@1.journal") },
		"a file that is no other": func(f folder) { m := sample(true, 1); m.b[0] = 'x'; f.write("user-1000.journal", m, 'b') },
		"a file that is a maze":   func(f folder) { m := sample(true, 1); m.put(120, 1<<40); f.write("user-1000.journal", m, 'b') },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := newFolder(t)
			spoil(folder)
			folder.write("system.journal", sample(true, 2), 'a')
			var said bytes.Buffer
			f := follow(t, journal.Config{Path: folder.path, Identifier: "a", Log: slog.New(slog.NewTextHandler(&said, nil))})
			f.expect(messages(2, "message %d of a"))
			f.quiet()
			folder.write("system@2.journal", newImage(true), 'd') // makes the reader list the directory again
			f.quiet()
			testkit.Same(t, strings.Count(said.String(), "level=WARN"), 1, "warnings: %s", said.String())
		})
	}
}

func TestUnreadableRenamedFileIsIgnoredBesideAnother(t *testing.T) {
	t.Parallel()
	folder := newFolder(t)
	folder.lock("system@1.journal")
	folder.write("system@2.journal", sample(true, 2), 'a')
	f := follow(t, journal.Config{Path: folder.path, Identifier: "a"})
	f.expect(messages(2, "message %d of a"))
	f.quiet()
	folder.write("system@3.journal", newImage(true), 'd')
	f.quiet()
}

func TestOneReadableDirectoryIsEnough(t *testing.T) {
	t.Parallel()
	volatile, persistent := newFolder(t), newFolder(t)
	persistent.lock("")
	reader := testkit.Value(journal.OpenIn(journal.Config{Identifier: "a"}, volatile.path, persistent.path)).Must(t)
	f := &follower{t: t, reader: reader}
	defer f.stop()
	f.wantsUnreadable(persistent.path)
	f.wantsToWait()
	volatile.write("system.journal", sample(true, 2), 'a')
	f.expect(messages(2, "message %d of a"))
	f.quiet()
}

func TestMessagesAreTrimmed(t *testing.T) {
	m := newImage(true)
	for _, message := range []string{"  foo bad \n\n", "foo bad\r\n", "\tfoo bad", "foo bad"} {
		m.say("a", message)
	}
	m.say("a", " \n ")
	texts, _, _, err := journal.Read(m.b, "a")
	testkit.Check(t, err == nil && strings.Join(texts, "|") == "foo bad|foo bad|foo bad|foo bad|", "%q, %v", texts, err)
}

// A busy journal never has a quiet moment in which the reader could look for new files.
func TestFileWithoutAHeaderIsOpenedLater(t *testing.T) {
	t.Parallel()
	folder := newFolder(t)
	folder.write("system.journal", sample(true, 1), 'a')
	folder.write("user-1000.journal", &image{b: make([]byte, 100)}, 0)
	f := follow(t, journal.Config{Path: folder.path, Identifier: "b"})
	f.reader.DisablePolling()
	f.expect([]string{"message 0 of b"})
	m := newImage(true)
	m.b[24], m.b[72] = 'b', 'b'
	m.say("b", "in the new file")
	file := testkit.Value(os.OpenFile(filepath.Join(folder.path, "user-1000.journal"), os.O_WRONLY, 0)).Must(t)
	defer file.Close()
	testkit.Value(file.WriteAt(m.b, 0)).Must(t)
	f.expect([]string{"message 0 of b", "in the new file"})
}
