package filelog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/format/golden"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// fixture is a log file with its writer and its reader.
type fixture struct {
	t      *testing.T
	path   string
	reader *Reader
	next   logs.Position
}

// newFixture returns a log file with these lines, which the reader has read.
func newFixture(t *testing.T, lines ...string) *fixture {
	t.Helper()
	g := &fixture{t: t, path: filepath.Join(t.TempDir(), "messages")}
	g.open()
	t.Cleanup(func() { g.reader.Close() })
	for _, text := range lines {
		g.says(text)
	}
	return g
}

// open starts a reader at the position of the last one.
func (g *fixture) open() {
	g.t.Helper()
	if g.reader != nil {
		testkit.Must(g.t, g.reader.Close())
	}
	r := testkit.Value(Open(Config{Path: g.path, From: g.next})).Must(g.t)
	r.delays = delays{}
	g.reader = r
}

func (g *fixture) append(text string) {
	g.t.Helper()
	appendTo(g.t, g.path, text)
}

// says appends lines, which the reader returns.
func (g *fixture) says(lines string) {
	g.t.Helper()
	g.append(lines)
	g.wants(lines)
}

// writer returns a writer of the file that does not append, and its function.
func (g *fixture) writer() (file *os.File, put func(text string)) {
	g.t.Helper()
	file = testkit.Value(os.Create(g.path)).Must(g.t)
	g.t.Cleanup(func() { file.Close() })
	return file, func(text string) {
		_, err := file.WriteString(text)
		testkit.Check(g.t, err == nil, "%v", err)
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	testkit.Must(t, err)
	_, err = f.WriteString(text)
	testkit.Must(t, errors.Join(err, f.Close()))
}

// read returns everything that can be read now.
func (g *fixture) read() string {
	g.t.Helper()
	var all strings.Builder
	for {
		g.reader.watch.follow(g.reader.open.file)
		chunk, _, err := g.reader.look(time.Now())
		testkit.Require(g.t, err == nil || errors.Is(err, logs.ErrNotExist), "%v", err)
		switch {
		case len(chunk.Text) > 0:
			all.Write(chunk.Text)
			g.next = chunk.Next
		case !g.reader.watch.stale && g.reader.watch.held == g.reader.open.file:
			return all.String()
		}
	}
}

// now returns the available chunk without waiting for more.
func (g *fixture) now() (logs.Chunk, error) {
	ctx, cancel := context.WithTimeout(g.t.Context(), 20*time.Millisecond)
	defer cancel()
	return g.reader.Next(ctx)
}

func (g *fixture) wants(want string) {
	g.t.Helper()
	testkit.MustBeSame(g.t, g.read(), want, "the lines")
}

func (g *fixture) rename() {
	g.t.Helper()
	for i := 5; i > 0; i-- {
		from := fmt.Sprintf("%s.%d", g.path, i)
		err := os.Rename(from, fmt.Sprintf("%s.%d", g.path, i+1))
		testkit.Require(g.t, err == nil || errors.Is(err, os.ErrNotExist), "%v", err)
	}
	testkit.Must(g.t, os.Rename(g.path, g.path+".1"))
}

func TestLinesAreReturnedOnce(t *testing.T) {
	g := newFixture(t, "one\ntwo\n")
	g.append("three\nfo")
	g.wants("three\n")
	g.append("ur\n")
	g.wants("four\n")
	g.append("five\n")
	g.open()
	g.wants("five\n")
	g.rename()
	appendTo(t, g.path+".1", "six\n")
	g.wants("six\n")
	g.says("seven\n")
	g.rename()
	g.append("eight\n")
	g.rename()
	g.append("nine\n")
	g.open()
	g.wants("eight\nnine\n")
}

// A reader with a backlog must not report that it has read everything.
func TestMore(t *testing.T) {
	g := newFixture(t)
	chunks := 0
	step := func(want bool) {
		t.Helper()
		chunk := testkit.Value(g.now()).Must(t)
		chunks++
		testkit.Check(t, chunk.More == want, "chunk %d, of %d bytes: More is %v", chunks, len(chunk.Text), chunk.More)
	}
	g.append(strings.Repeat("a line\n", chunkSize/7+100))
	step(true)
	step(false)
	g.append("one\nhalf of")
	step(false)
	g.append(" a line\nlast\nhalf")
	g.rename()
	g.append("next\n")
	step(true) // the complete lines; another file follows
	step(true) // the incomplete line
	step(false)
	g.append("before\n")
	g.copyAndTruncate(g.path + ".1")
	g.append("after\n")
	step(true)
	step(false)
	g.append(strings.Repeat("x", maxLine+1) + "\nrest\n")
	step(true)
	step(false)
}

func (g *fixture) copyAndTruncate(name string) {
	g.t.Helper()
	text := testkit.Value(os.ReadFile(g.path)).Must(g.t)
	testkit.Must(g.t, os.WriteFile(name, text, 0o600))
	testkit.Must(g.t, os.Truncate(g.path, 0))
}

func (g *fixture) remove() {
	g.t.Helper()
	testkit.Must(g.t, os.Remove(g.path))
}

func TestCopyIsReadBeforeTheTruncatedFile(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			g := newFixture(t, "one\n")
			g.append("two\nthree\n")
			g.copyAndTruncate(g.path + ".1")
			// The file is longer than when it was last read.
			g.append("four, which is long enough\n")
			if restart {
				g.open()
			}
			g.wants("two\nthree\nfour, which is long enough\n")
			testkit.Same(t, g.reader.Counts().Gaps, 0, "gaps")
		})
	}
}

func TestTruncationIsNoticed(t *testing.T) {
	banner, ticks := strings.Repeat("this log begins alike every time\n", 20), strings.Repeat("tick\n", 200)
	for _, test := range []struct{ name, first, unread, next string }{
		{"with the same start: only the text before the position differs", banner + "one\n", "two\n", banner + "three\nfour\nfive\n"},
		{"with the same end: only the first lines differ", "boot 1\n" + ticks, "", "boot 2\n" + ticks + ticks},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := newFixture(t, test.first)
			g.append(test.unread)
			g.copyAndTruncate(g.path + ".1")
			g.append(test.next)
			g.wants(test.unread + test.next)
		})
	}
}

func TestFileTruncatedBeforeTheFirstReadIsReadInItsCopy(t *testing.T) {
	g := newFixture(t, "one\n")
	g.rename()
	g.append("two\n")
	_, wait, err := g.reader.moveOn(time.Now())
	testkit.Require(t, wait == again && err == nil && g.reader.open.file.Name() == g.path, "the reader has not opened the new file: %v %v", wait, err)
	testkit.Must(t, os.Rename(g.path+".1", g.path+".2"))
	g.copyAndTruncate(g.path + ".1")
	g.append("three\n")
	g.wants("two\nthree\n")
}

// The directory was listed before the copy was made, and the file was read after it was
// truncated.
func TestCopyMadeAfterTheScanIsFound(t *testing.T) {
	g := newFixture(t, "one\n")
	at, err := parsePosition(g.next)
	testkit.Must(t, err)
	looks := 0
	file, err := findAmong(func(path string) ([]fileInfo, error) {
		seen, err := listFiles(path)
		if looks++; looks == 1 {
			g.append("two\n")
			g.copyAndTruncate(g.path + ".1")
		}
		return seen, err
	}, g.path, at)
	testkit.Require(t, err == nil && file != nil, "found nothing: %v", err)
	defer file.Close()
	testkit.Same(t, file.Name(), g.path+".1", "the rotated files")
}

func TestFileRenamedDuringTheScanIsFound(t *testing.T) {
	there := []fileInfo{{path: "messages", inode: 2}, {path: "messages.2", inode: 1}}
	looks := 0
	seen, err := settled(func(string) ([]fileInfo, error) {
		if looks++; looks == 1 {
			return there[:1], nil
		}
		return there, nil
	}, "messages")
	testkit.Check(t, err == nil && len(seen) == 2 && looks == 3, "found %v in %d scans (%v)", seen, looks, err)
}

func TestTruncationWithoutACopyIsAGap(t *testing.T) {
	g := newFixture(t)
	g.append("one\ntwo\nhal")
	g.wants("one\ntwo\n")
	testkit.Must(t, os.Truncate(g.path, 0))
	g.append("three\n")
	g.wants("hal\nthree\n")
	testkit.Same(t, g.reader.Counts().Gaps, 1, "gaps")
}

// A copy that was made before the last lines were read must not be read again.
func TestCopyOfAnAlreadyReadPartIsIgnored(t *testing.T) {
	g := newFixture(t)
	one := strings.Repeat("one\n", span)
	g.says(one)
	text := testkit.Value(os.ReadFile(g.path)).Must(t)
	g.says("two\n")
	testkit.Must(t, os.WriteFile(g.path+".1", text, 0o600))
	later := time.Now().Add(time.Minute)
	testkit.Must(t, errors.Join(os.Chtimes(g.path+".1", later, later), os.Truncate(g.path, 0)))
	g.says("three\n")
}

func TestSuccessorOfACompressedFileIsFoundByItsTime(t *testing.T) {
	g := newFixture(t)
	g.append("older\n")
	old := time.Now().Add(-time.Hour)
	testkit.Must(t, os.Chtimes(g.path, old, old))
	g.rename()
	g.says("one\n")
	g.append("two, which is packed before it is read\n")
	g.rename()
	g.append("three\n")
	later := time.Now().Add(time.Minute)
	testkit.Must(t, errors.Join(os.Remove(g.path+".1"), os.Chtimes(g.path, later, later)))
	g.rename()
	g.append("four\n")
	g.open()
	g.wants("three\nfour\n")
	testkit.Same(t, g.reader.Counts().Gaps, 1, "gaps")
}

func TestIsGeneration(t *testing.T) {
	for _, c := range []struct {
		base, name string
		want       bool
	}{
		{"syslog", "syslog.1", true},
		{"syslog", "syslog-20260131", true},
		{"syslog", "syslog.2026-01-31_10:00", true},
		{"syslog", "syslog.old", true},
		{"0.log", "0.log.20260131-093000", true},
		{"app.log", "app-20260131.log", true},
		{"app.log", "app-2026-01-31.log", true},
		{"syslog", "syslog", false},
		{"syslog", "syslog.1.gz", false},
		{"syslog", "syslog-ng", false},
		{"syslog", "syslogd.1", false},
		{"app.log", "app-2.log", false},
		{"app.log", "app2.log", false},
		{"app.log", "application.log", false},
		{"syslog", "syslog.", false},
		{"syslog", "syslog1", false},
		{".log", "-20260131.log", false},
	} {
		testkit.Same(t, isGeneration(c.base, c.name), c.want, "%s of %s", c.name, c.base)
	}
}

func TestReusedInodeIsAnotherFile(t *testing.T) {
	g := newFixture(t, "one\n")
	before := testkit.Value(statFile(g.path)).Must(t)
	// The same inode with another content, even if this disk does not reuse inodes.
	testkit.Must(t, os.WriteFile(g.path, []byte("another file\nof more than that\n"), 0o600))
	after, err := statFile(g.path)
	testkit.Require(t, err == nil && after.inode == before.inode, "the inode has changed: %v", err)
	g.open()
	g.wants("another file\nof more than that\n")
}

// step reads one chunk, and waits for it.
func (g *fixture) step() (logs.Chunk, error) {
	ctx, cancel := context.WithTimeout(g.t.Context(), 10*time.Second)
	defer cancel()
	chunk, err := g.reader.Next(ctx)
	if err == nil {
		g.next = chunk.Next
	}
	return chunk, err
}

// soon expects a chunk after do runs while the reader waits. The test cannot observe that
// the reader waits, so it first lets Next time out.
func (g *fixture) soon(want string, do func()) {
	g.t.Helper()
	g.reader.delays.settle = 0
	g.waits()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	chunk, err := g.step()
	for errors.Is(err, logs.ErrNotExist) {
		chunk, err = g.step() // the reader was between two changes
	}
	<-done
	testkit.Require(g.t, err == nil && string(chunk.Text) == want, "read %q (%v), want %q", chunk.Text, err, want)
}

// waits expects that there is nothing to read.
func (g *fixture) waits() {
	g.t.Helper()
	chunk, err := g.now()
	testkit.Require(g.t, errors.Is(err, context.DeadlineExceeded), "read %q (%v), want the reader to wait", chunk.Text, err)
}

func (g *fixture) isAway() {
	g.t.Helper()
	_, err := g.step()
	testkit.Require(g.t, errors.Is(err, logs.ErrNotExist), "got %v, want ErrNotExist", err)
}

func TestInotifyReportsEveryStepOfThePath(t *testing.T) {
	g := newFixture(t)
	folder := filepath.Join(filepath.Dir(g.path), "not", "there", "yet")
	g.path = filepath.Join(folder, "messages")
	g.open()
	g.isAway()
	// The path is created step by step, and the reader notices each step: nothing else would
	// wake it within the time of the test.
	g.soon("one\n", func() {
		testkit.Must(g.t, os.MkdirAll(folder, 0o700))
		g.append("one\n")
	})
	g.soon("two\n", func() { g.append("two\n") })
	g.soon("three\n", func() { g.rename(); g.append("three\n") })
	g.remove()
	g.isAway()
	g.soon("four\n", func() { g.append("four\n") })
	testkit.Must(t, os.RemoveAll(folder))
	g.isAway()
	g.soon("five\n", func() {
		testkit.Must(g.t, os.MkdirAll(folder, 0o700))
		g.append("five\n")
	})
	testkit.Check(t, !g.reader.watch.logged, "the reader had to poll")
}

func TestMissingFileIsReportedOnce(t *testing.T) {
	g := newFixture(t)
	g.isAway()
	g.waits()
	g.says("one\n")
	g.remove()
	g.isAway()
	g.waits()
}

func TestLinksAreFollowed(t *testing.T) {
	folder := t.TempDir()
	g := newFixture(t)
	point := func(link, target string) {
		t.Helper()
		testkit.Must(t, errors.Join(os.Symlink(target, link+".new"), os.Rename(link+".new", link)))
	}
	for _, pod := range []string{"a", "b"} {
		testkit.Must(t, os.Mkdir(filepath.Join(folder, pod), 0o700))
	}
	first, second := filepath.Join(folder, "a", "0.log"), filepath.Join(folder, "b", "1.log")
	appendTo(t, first, "one\n")
	pod := filepath.Join(folder, "pod")
	point(pod, "a")
	g.path = filepath.Join(folder, "c.log")
	point(g.path, "pod/0.log")
	g.open()
	g.wants("one\n")
	g.soon("two\n", func() {
		// Rotate the file that the link points to.
		testkit.Must(t, os.Rename(first, first+".20260131-093000"))
		appendTo(t, first+".20260131-093000", "two\n")
	})
	appendTo(t, first, "three\n")
	g.open()
	g.wants("three\n")
	g.soon("four\n", func() {
		appendTo(t, second, "four\n")
		point(g.path, second)
	})
	g.soon("five\n", func() {
		appendTo(t, filepath.Join(folder, "b", "0.log"), "five\n")
		point(pod, "b")
		point(g.path, "pod/0.log")
	})
	testkit.Must(t, os.Mkdir(filepath.Join(folder, "c"), 0o700))
	appendTo(t, filepath.Join(folder, "c", "0.log"), "six\n")
	g.soon("six\n", func() { point(pod, "c") }) // a directory on the way
}

func TestRotatedFileIsReadWhileItsWriterContinues(t *testing.T) {
	g := newFixture(t, "one\n")
	g.reader.delays = delays{quiet: time.Hour, linger: time.Hour}
	g.rename()
	g.append("four\n")
	g.waits() // for the old file
	g.soon("two\n", func() { appendTo(t, g.path+".1", "two\n") })
	g.soon("three\n", func() { appendTo(t, g.path+".1", "three\n") })
	g.reader.delays.quiet = 100 * time.Millisecond
	chunk, err := g.step()
	testkit.Require(t, err == nil && string(chunk.Text) == "four\n", "read %q (%v), want the new file", chunk.Text, err)
}

// Its writer may continue, but an open deleted file uses disk space.
func TestDeletedFileIsReadToItsEndAndClosed(t *testing.T) {
	g := newFixture(t)
	_, put := g.writer()
	put("one\n")
	g.wants("one\n")
	g.reader.delays = delays{linger: time.Minute}
	g.remove()
	g.soon("two\n", func() { put("two\n") })
	g.reader.delays.linger = time.Millisecond
	g.isAway()
	testkit.Check(t, g.reader.open.file == nil, "the file is still open")
	g.says("three\n")
	testkit.Same(t, g.reader.Counts().Gaps, 0, "gaps")
}

func TestLongLinesAreTruncatedAndCounted(t *testing.T) {
	g := newFixture(t)
	just, over := strings.Repeat("j", maxLine), strings.Repeat("o", 10*chunkSize)
	g.append("one\n" + just + "\n" + over)
	g.wants("one\n" + just + "\n" + over[:maxLine] + "\n")
	g.open() // within the line
	g.append(over + "\ntwo\n" + just + "x\nthree\n")
	g.wants("two\n" + just + "\nthree\n")
	testkit.Same(t, g.reader.Counts().LongLines, 1, "long lines that were counted since the restart")
}

func TestZerosOfATruncatedFileAreSkipped(t *testing.T) {
	g := newFixture(t)
	writer, put := g.writer()
	put("one\n")
	g.wants("one\n")
	if _, err := writer.Seek(1<<40, 0); err != nil { // reading this hole would take minutes
		t.Fatal(err)
	}
	g.copyAndTruncate(g.path + ".1")
	put("two\n\x00\x00\x00three\nfo\x00ur\n")
	start := time.Now()
	g.wants("two\nthree\nfo\x00ur\n")
	testkit.Between(t, time.Since(start), 0, 5*time.Second, "the time to read")
	g.open()
	put("five\n")
	g.wants("five\n")
}

// Both files begin with zeros, and the first is deleted when the second is found.
func TestFilesThatStartWithZerosAreDistinguished(t *testing.T) {
	g := newFixture(t)
	zeros := strings.Repeat("\x00", span)
	g.append(zeros + "one\n")
	g.wants("one\n")
	g.remove()
	g.append(zeros + "zeros\ntwo\n")
	later := time.Now().Add(time.Minute)
	testkit.Must(t, os.Chtimes(g.path, later, later))
	g.rename()
	g.append("three\n")
	g.wants("zeros\ntwo\nthree\n")
}

func TestFirstIsTheOffsetOfTheText(t *testing.T) {
	g := newFixture(t)
	g.append("one\n\x00\x00two\n")
	for _, want := range []struct {
		text  string
		first uint64
	}{{"one\n", 0}, {"two\n", 6}} {
		chunk, err := g.step()
		testkit.Require(t, err == nil && string(chunk.Text) == want.text && chunk.First == want.first && chunk.Records == nil,
			"read %q at %d (%v), want %v", chunk.Text, chunk.First, err, want)
	}
}

func TestOtherFileTypesAreRejected(t *testing.T) {
	for _, c := range []struct {
		name, want string
		make       func(path string) error
	}{
		{"a folder", "it is a directory; use a file", func(path string) error { return os.Mkdir(path, 0o700) }},
		{"a pipe", "it is a pipe", func(path string) error { return unix.Mkfifo(path, 0o600) }},
		{"a device", "it is a device", func(path string) error { return os.Symlink("/dev/null", path) }},
		{"a circle of links", "too many levels of symbolic links", func(path string) error { return os.Symlink(path, path) }},
		{"a file on the way", "not a directory", func(path string) error {
			return errors.Join(os.Remove(filepath.Dir(path)), os.WriteFile(filepath.Dir(path), nil, 0o600))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newFixture(t)
			folder := filepath.Join(filepath.Dir(g.path), "logs")
			testkit.Must(t, os.Mkdir(folder, 0o700))
			g.path = filepath.Join(folder, "messages")
			g.open()
			testkit.Must(t, c.make(g.path))
			_, err := g.step()
			testkit.Require(t, err != nil && strings.Contains(err.Error(), c.want) && strings.Count(err.Error(), "reading "+g.path) == 1,
				"got %v, want %q and the path, once", err, c.want)
			g.waits()
			g.soon("one\n", func() {
				testkit.Must(t, errors.Join(os.RemoveAll(folder), os.Mkdir(folder, 0o700)))
				g.append("one\n")
			})
		})
	}
}

func TestUnreadableFileIsRetried(t *testing.T) {
	g := newFixture(t)
	g.append("one\n")
	testkit.Must(t, os.Chmod(g.path, 0))
	for dir := filepath.Dir(g.path); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		testkit.Must(t, os.Chmod(dir, 0o755))
	}
	// Root can read everything, so this thread uses another user for file access.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	testkit.Must(t, unix.Setfsuid(65534))
	defer func() { _ = unix.Setfsuid(0) }()
	_, err := g.step()
	testkit.Require(t, errors.Is(err, fs.ErrPermission) && strings.Contains(err.Error(), g.path), "got %v, want a permission error", err)
	g.soon("one\n", func() { testkit.Must(t, os.Chmod(g.path, 0o644)) })
}

func TestPollingWithoutInotify(t *testing.T) {
	var said bytes.Buffer
	g := newFixture(t, "one\n")
	w := g.reader.watch
	w.log = slog.New(slog.NewTextHandler(&said, nil))
	testkit.Must(t, w.close())
	w.inotify, w.stale = nil, false
	w.poll("asking for inotify", unix.EMFILE)
	w.poll("asking for inotify", unix.EMFILE)
	g.soon("two\n", func() { g.append("two\n") })
	testkit.Same(t, strings.Count(said.String(), "\n"), 1, "log lines: %s", said.String())
}

func TestOpenRejectsARelativePath(t *testing.T) {
	_, err := Open(Config{Path: "messages"})
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "not absolute"), "the error is %v", err)
}

func TestInvalidPositionIsAGap(t *testing.T) {
	for _, position := range []string{"{", `"x"`, `{"offset":-1}`, `{"offset":"one"}`} {
		g := newFixture(t)
		g.append("one\n")
		g.next = logs.Position(position)
		g.open()
		g.wants("one\n")
		testkit.Same(t, g.reader.Counts().Gaps, 1, "%s: gaps", position)
	}
}

func FuzzPosition(f *testing.F) {
	folder := f.TempDir()
	path := filepath.Join(folder, "messages")
	text := strings.Repeat("one line is like another\n", 40)
	testkit.Must(f, errors.Join(os.WriteFile(path, []byte(text), 0o600), os.WriteFile(path+".1", []byte(text[:500]), 0o600)))
	f.Add([]byte(`{"device":1,"inode":2,"offset":25,"inLine":true,"head":0,"tail":18446744073709551615,"written":-1}`))
	f.Add([]byte(`{"offset":9223372036854775807}`))
	f.Add([]byte(`{"offset":-9223372036854775808}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, position []byte) {
		r := testkit.Value(Open(Config{Path: path, From: position})).Must(t)
		defer r.Close()
		r.delays = delays{}
		chunk, _, err := r.look(time.Now())
		testkit.Must(t, err)
		testkit.Require(t, strings.HasSuffix(text, string(chunk.Text)), "read %q", chunk.Text)
		_, err = parsePosition(chunk.Next)
		testkit.Require(t, len(chunk.Text) == 0 || err == nil, "%v", err)
	})
}

// The agent's state file contains the position. This is version 1 of its format, as it was
// first written and with the optional fields that came later.
func TestStoredFormatIsUnchanged(t *testing.T) {
	golden.Check(t, "testdata/position-v1.json", &filePosition{})
	golden.Check(t, "testdata/position-v1-born.json", &filePosition{})
}
