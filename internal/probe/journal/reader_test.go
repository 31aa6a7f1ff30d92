package journal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/resourcestack/autohealer/internal/probe/journal"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// line is a returned record with its text.
type line struct {
	text string
	logs.Record
}

// follower reads the journal and keeps what it reads.
type follower struct {
	t      *testing.T
	reader *journal.Reader
	lines  []line
	lost   uint64
	next   logs.Position
	more   bool // More of the last chunk
}

func follow(t *testing.T, config journal.Config) *follower {
	t.Helper()
	reader := testkit.Value(journal.Open(config)).Must(t)
	t.Cleanup(func() { _ = reader.Close() })
	return &follower{t: t, reader: reader, next: config.From}
}

// one reads one chunk.
func (f *follower) one(wait time.Duration) error {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), wait)
	defer cancel()
	chunk, err := f.reader.Next(ctx)
	if err != nil {
		return err
	}
	f.next, f.more = chunk.Next, chunk.More
	f.lost += chunk.Lost
	begin := 0
	for _, r := range chunk.Records {
		text, isWhole := strings.CutSuffix(string(chunk.Text[begin:r.End]), "\n")
		testkit.Check(f.t, isWhole, "record %q does not end with a newline", text)
		f.lines = append(f.lines, line{text, r})
		begin = r.End
	}
	testkit.Same(f.t, begin, len(chunk.Text), "the end of the records in the chunk")
	return nil
}

// until reads until there are n lines.
func (f *follower) until(n int) {
	f.t.Helper()
	for len(f.lines) < n {
		err := f.one(10 * time.Second)
		testkit.Require(f.t, err == nil || errors.Is(err, logs.ErrNotExist), "after %d of %d lines: %v", len(f.lines), n, err)
	}
}

// quiet fails the test if more lines follow.
func (f *follower) quiet() {
	f.t.Helper()
	before := len(f.lines)
	for {
		err := f.one(300 * time.Millisecond)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		testkit.Must(f.t, err)
	}
	if len(f.lines) > before {
		f.t.Errorf("unexpected: %q", f.texts()[before:])
	}
}

func (f *follower) texts() []string {
	list := make([]string, len(f.lines))
	for i, l := range f.lines {
		list[i] = l.text
	}
	return list
}

// stop closes the reader, and returns the position.
func (f *follower) stop() logs.Position {
	f.t.Helper()
	testkit.Must(f.t, f.reader.Close())
	return f.next
}

func (f *follower) expect(want []string) {
	f.t.Helper()
	f.until(len(want))
	testkit.NoDiff(f.t, cmp.Diff(want, f.texts(), cmpopts.EquateEmpty()), "the lines")
}

// mixture writes entries of every shape with two identifiers.
func mixture(j *journald, rounds int) {
	long := strings.Repeat("all work and no play ", 200)
	for i := range rounds {
		for _, m := range []string{
			fmt.Sprintf("plain %d", i),
			fmt.Sprintf("two\nlines %d", i),
			fmt.Sprintf("ends with a newline %d\n", i),
			fmt.Sprintf("odd \x00\xff\x80 bytes %d", i),
			fmt.Sprintf("%d %s", i, long),
			fmt.Sprintf("%d %s", i, strings.Repeat(long, 12)),
			"always the same",
			"",
			"=",
		} {
			j.say("kubelet", m)
			j.say("kubelet2", "another "+m)
		}
		j.send(field{"SYSLOG_IDENTIFIER", "kubelet"}, field{"NOTE", "an entry without a message"})
		j.send(field{"SYSLOG_IDENTIFIER", "kubelet"}, field{"MESSAGE", "without a priority"})
		j.send(field{"SYSLOG_IDENTIFIER", "kubelet"}, field{"MESSAGE", "odd values"}, field{"PRIORITY", "high"}, field{"SYSLOG_FACILITY", "99999"})
		j.send(field{"MESSAGE", "without an identifier"}, field{"PRIORITY", "7"}, field{"LONG", long})
		j.send(field{"SYSLOG_IDENTIFIER", "kubelet"}, field{"COMMENT", long}, field{"MESSAGE", "beside a long field"})
	}
}

// asJournalctlEntry converts a record to the form of journalctl.
func asJournalctlEntry(l line) journalctlEntry {
	number := func(n int) string {
		if n == logs.NoPriority {
			return ""
		}
		return strconv.Itoa(n)
	}
	return journalctlEntry{message: l.text, realtime: uint64(l.Time.UnixMicro()), priority: number(int(l.Priority)), facility: number(int(l.Facility))}
}

func TestReaderAgreesWithJournalctl(t *testing.T) {
	for name, c := range map[string]struct {
		settings string
		env      []string
	}{
		"compact":           {"", []string{"SYSTEMD_JOURNAL_COMPACT=1"}},
		"without keys":      {"", []string{"SYSTEMD_JOURNAL_KEYED_HASH=0", "SYSTEMD_JOURNAL_COMPACT=0"}},
		"not compressed":    {"Compress=no", nil},
		"all is compressed": {"Compress=8", nil},
		"kept on a disk":    {"Storage=persistent", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := "ReadKMsg=no\nStorage=volatile\n" + c.settings
			j := startJournald(t, settings, c.env...)
			const rounds = 12
			if strings.Contains(c.settings, "persistent") {
				j.flush()
			}
			mixture(j, rounds/2)
			j.rotate()
			mixture(j, rounds/2)
			j.sync()
			folder := j.volatile()
			if strings.Contains(c.settings, "persistent") {
				folder = j.persistent()
			}
			for _, identifier := range []string{"kubelet", "kubelet2", ""} {
				t.Run("identifier "+identifier, func(t *testing.T) {
					var want []journalctlEntry
					for _, w := range j.journalctl(folder, identifier) {
						if len(w.message) > journal.MaxMessage {
							w.message = w.message[:journal.MaxMessage]
						}
						w.message = strings.TrimSpace(w.message)
						if len(w.facility) > 3 {
							w.facility = ""
						}
						if len(w.priority) > 1 {
							w.priority = ""
						}
						want = append(want, w)
					}
					f := follow(t, journal.Config{Path: folder, Identifier: identifier})
					f.until(len(want))
					var got []journalctlEntry
					for _, l := range f.lines {
						got = append(got, asJournalctlEntry(l))
					}
					testkit.NoDiff(t, cmp.Diff(want, got, cmp.AllowUnexported(journalctlEntry{})), "journalctl and the reader (-journalctl +reader)")
					f.quiet()
					testkit.Check(t, f.lost == 0, "%d entries are counted as lost", f.lost)
					t.Logf("%d entries in %d files are the same", len(want), j.files())
					testkit.Check(t, len(want) >= rounds*9, "only %d entries were compared", len(want))
				})
			}
		})
	}
}

func TestLongMessageIsTruncatedAndCounted(t *testing.T) {
	t.Parallel()
	for _, compress := range []string{"yes", "no"} {
		j := startJournald(t, "Storage=volatile\nReadKMsg=no\nCompress="+compress)
		whole, long := strings.Repeat("x", journal.MaxMessage), strings.Repeat("y", journal.MaxMessage)
		j.say("kubelet", whole)
		j.say("kubelet", long+"z")
		f := follow(t, journal.Config{Path: j.volatile(), Identifier: "kubelet"})
		f.expect([]string{whole, long})
		testkit.Same(t, f.reader.Cut(), 1, "compressed %s: messages that are counted as truncated", compress)
	}
}

func TestRotationRepeatsAndLosesNothing(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=volatile\nReadKMsg=no")
	f := follow(t, journal.Config{Path: j.volatile(), Identifier: "kubelet"})
	var want []string
	for round := range 6 {
		for i := range 20 {
			m := fmt.Sprintf("round %d message %d", round, i)
			j.say("kubelet", m)
			j.say("other", m)
			want = append(want, m)
		}
		if round%2 == 0 {
			f.until(len(want) - 10)
		}
		j.rotate()
	}
	f.expect(want)
	f.quiet()
	testkit.Check(t, f.lost == 0, "%d entries are counted as lost", f.lost)
	testkit.Check(t, !f.more, "More is true at the end")
}

func TestRestartRepeatsAndLosesNothing(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=volatile\nReadKMsg=no")
	config := journal.Config{Path: j.volatile(), Identifier: "kubelet"}
	say := func(messages ...string) {
		for _, m := range messages {
			j.say("kubelet", m)
		}
	}
	read := func(want ...string) {
		t.Helper()
		f := follow(t, config)
		f.expect(want)
		f.quiet()
		testkit.Check(t, f.lost == 0, "%d entries are counted as lost", f.lost)
		config.From = f.stop()
	}
	say("one", "two")
	read("one", "two")
	read()
	say("three")
	read("three")
	say("four")
	j.rotate()
	say("five")
	read("four", "five")
	j.rotate()
	read()
	j.rotate()
	j.say("other", "keeps the file from being empty")
	j.rotate()
	say("six")
	j.rotate()
	j.rotate()
	read("six")
	say("seven")
	read("seven")
}

func TestRestartAfterEachChunkRepeatsAndLosesNothing(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=persistent\nReadKMsg=no")
	j.flush()
	want := messages(3000, "message %d, which is long enough that all of them do not fit into one chunk: "+strings.Repeat("x", 100))
	for i, m := range want {
		j.sayAs(uint32(i%2*1000), "kubelet", m)
		if i == 1000 {
			j.rotate()
		}
	}
	j.sync()
	config := journal.Config{Path: j.persistent(), Identifier: "kubelet"}
	var got []string
	readers := 0
	for ; len(got) < len(want); readers++ {
		f := follow(t, config)
		err := f.one(5 * time.Second)
		testkit.Require(t, err == nil, "after %d lines: %v", len(got), err)
		got = append(got, f.texts()...)
		testkit.Check(t, len(got) >= len(want) || f.more, "after %d lines of %d More is false", len(got), len(want))
		config.From = f.stop()
	}
	testkit.NoDiff(t, cmp.Diff(want, got), "the lines")
	testkit.Check(t, readers >= 5, "only %d readers were needed: the test is ineffective", readers)
}

// heldOpen returns the files below a directory that this process has open.
func heldOpen(t *testing.T, folder string) (paths []string) {
	t.Helper()
	handles := testkit.Value(filepath.Glob("/proc/self/fd/*")).Must(t)
	for _, handle := range handles {
		if path, err := os.Readlink(handle); err == nil && strings.HasPrefix(path, folder) {
			paths = append(paths, path)
		}
	}
	return paths
}

func TestFinishedFilesAreClosed(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=volatile\nReadKMsg=no")
	f := follow(t, journal.Config{Path: j.volatile(), Identifier: "kubelet"})
	for i := range 5 {
		j.say("kubelet", "message")
		j.rotate()
		f.until(i + 1)
	}
	j.say("other", "in the file that is in use")
	testkit.Until(t, "one file is open", func() bool {
		_ = f.one(10 * time.Millisecond)
		return len(heldOpen(t, j.volatile())) == 1
	})
	// Only a person deletes a file in use. Journald then creates another.
	j.sync()
	j.remove("system.journal")
	testkit.Until(t, "the deleted file is closed", func() bool {
		_ = f.one(10 * time.Millisecond)
		return !slices.ContainsFunc(heldOpen(t, j.volatile()), func(path string) bool { return strings.HasSuffix(path, "(deleted)") })
	})
}

func TestEntriesBeforeSinceAreSkipped(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=volatile\nReadKMsg=no")
	for _, m := range messages(300, "old %d") {
		j.say("kubelet", m)
	}
	config := journal.Config{Path: j.volatile(), Identifier: "kubelet"}
	f := follow(t, config)
	f.until(300)
	f.stop()

	config.Since = f.lines[299].Time.Add(time.Microsecond)
	f = follow(t, config)
	err := f.one(5 * time.Second)
	testkit.Require(t, err == nil && len(f.lines) == 0, "the first chunk has %d lines (%v): want none, and a position", len(f.lines), err)
	config.From = f.stop()
	config.Since = time.Time{} // as after a restart, when only the position counts
	j.say("kubelet", "new")
	f = follow(t, config)
	f.expect([]string{"new"})
	f.quiet()

	// From the middle on.
	config.From, config.Since = nil, time.Time{}
	all := follow(t, config)
	all.until(301)
	for _, from := range []int{1, 2, 17, 150, 299} {
		config.Since = all.lines[from].Time
		f = follow(t, config)
		first := slices.IndexFunc(all.lines, func(l line) bool { return !l.Time.Before(config.Since) })
		f.expect(all.texts()[first:])
	}
}

func TestEntriesOfADeletedFileAreCounted(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=volatile\nReadKMsg=no")
	config := journal.Config{Path: j.volatile()}
	j.say("kubelet", "first")
	f := follow(t, config)
	testkit.Until(t, "the first entry is read", func() bool {
		_ = f.one(time.Second)
		return slices.Contains(f.texts(), "first")
	})
	config.From = f.stop()
	for _, m := range messages(50, "lost %d") {
		j.say("kubelet", m)
	}
	j.rotate()
	j.remove("system@*")
	j.say("kubelet", "second")
	j.sync()
	left := j.journalctl(j.volatile(), "")
	f = follow(t, config)
	f.until(len(left))
	texts := f.texts()
	testkit.Check(t, slices.Contains(texts, "second") && !slices.Contains(texts, "lost 49"), "read %q", texts)
	// These entries, and the marker that journald writes.
	testkit.Same(t, f.lost, 51, "entries that are counted as lost")
}

func TestDeletedOpenFileIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=volatile\nReadKMsg=no")
	want := messages(5000, "message %d, which is long enough that not all fit into one chunk")
	for _, m := range want[:4990] {
		j.say("kubelet", m)
	}
	j.rotate()
	f := follow(t, journal.Config{Path: j.volatile(), Identifier: "kubelet"})
	f.until(1)
	j.remove("system@*")
	for _, m := range want[4990:] {
		j.say("kubelet", m)
	}
	f.expect(want)
	testkit.Check(t, f.lost == 0, "%d entries are counted as lost", f.lost)
}

func TestReadingContinuesAfterJournaldIsKilled(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=volatile\nReadKMsg=no")
	f := follow(t, journal.Config{Path: j.volatile(), Identifier: "kubelet"})
	j.say("kubelet", "before")
	f.until(1)
	j.kill()
	j.start()
	j.say("kubelet", "between")
	f.until(2)
	j.stop()
	j.start()
	j.say("kubelet", "after")
	f.expect([]string{"before", "between", "after"})
	f.quiet()
}

func TestRenamedFilesAreRead(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=volatile\nReadKMsg=no")
	j.say("kubelet", "before")
	f := follow(t, journal.Config{Path: j.volatile(), Identifier: "kubelet"})
	f.until(1)
	from := f.stop()
	j.say("kubelet", "unread")
	j.kill()
	// The file is of another machine, as after cloning a disk. Journald renames it.
	j.patch("system.journal", 40, []byte("another machine!"))
	j.start()
	j.say("kubelet", "after")
	f = follow(t, journal.Config{Path: j.volatile(), Identifier: "kubelet", From: from})
	f.expect([]string{"unread", "after"})
	f.quiet()
	aside := j.glob("*.journal~")
	testkit.Check(t, len(aside) != 0, "journald has renamed no file: the test is ineffective")

	// Also while it is being read.
	j.kill()
	j.patch("system.journal", 40, []byte("another machine!"))
	j.start()
	j.say("kubelet", "at last")
	f.expect([]string{"unread", "after", "at last"})
	f.quiet()
	testkit.Until(t, "one file is open", func() bool {
		_ = f.one(10 * time.Millisecond)
		return len(heldOpen(t, j.volatile())) == 1
	})
}

func TestMissingJournalIsAwaited(t *testing.T) {
	t.Parallel()
	j := newJournald(t, "Storage=volatile\nReadKMsg=no")
	f := follow(t, journal.Config{Path: j.volatile(), Identifier: "kubelet"})
	err := f.one(5 * time.Second)
	testkit.Check(t, errors.Is(err, logs.ErrNotExist), "without a journal: %v, want %v", err, logs.ErrNotExist)
	err = f.one(100 * time.Millisecond)
	testkit.Check(t, errors.Is(err, context.DeadlineExceeded), "the next call returned %v, want it to wait", err)
	j.start()
	j.say("kubelet", "hello")
	f.expect([]string{"hello"})
}

func TestFlushRepeatsNothing(t *testing.T) {
	t.Parallel()
	for name, isRestarted := range map[string]bool{"followed": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := startJournald(t, "Storage=auto\nReadKMsg=no")
			config := journal.Config{Identifier: "kubelet"}
			reader := testkit.Value(journal.OpenIn(config, j.volatile(), j.persistent())).Must(t)
			f := &follower{t: t, reader: reader}
			want := messages(100, "message %d")
			for _, m := range want[:40] {
				j.say("kubelet", m)
			}
			f.until(40)
			if isRestarted {
				config.From = f.stop()
				for _, m := range want[40:50] {
					j.say("kubelet", m)
				}
			}
			j.flush()
			for _, m := range want[len(f.lines)+10*btoi(isRestarted):] {
				j.say("kubelet", m)
			}
			if isRestarted {
				f.reader = testkit.Value(journal.OpenIn(config, j.volatile(), j.persistent())).Must(t)
			}
			j.sync()
			f.expect(want)
			f.quiet()
			testkit.Must(t, f.reader.Close())
			testkit.Same(t, len(j.journalctl(j.persistent(), "kubelet")), len(want), "entries that journald has copied; otherwise the test is ineffective")
		})
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestInotifyReportsWritesOfJournald(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=persistent\nReadKMsg=no")
	j.flush()
	j.sync()
	f := follow(t, journal.Config{Path: j.persistent(), Identifier: "kubelet"})
	f.reader.DisablePolling()
	f.quiet()
	j.say("kubelet", "written")
	f.until(1)
	j.sayAs(1000, "kubelet", "to another file")
	f.until(2)
	j.rotate()
	j.say("kubelet", "to the next file")
	f.expect([]string{"written", "to another file", "to the next file"})
}

func TestPollingWithoutInotify(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=volatile\nReadKMsg=no")
	j.sync()
	f := follow(t, journal.Config{Path: j.volatile(), Identifier: "kubelet"})
	testkit.Must(t, f.reader.DisableNotify())
	f.quiet()
	j.say("kubelet", "written")
	f.until(1)
	j.rotate()
	j.say("kubelet", "to the next file")
	f.expect([]string{"written", "to the next file"})
}

func TestUserJournalsAreReadInOrder(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=persistent\nReadKMsg=no")
	j.flush()
	f := follow(t, journal.Config{Path: j.persistent(), Identifier: "kubelet"})
	want := messages(300, "message %d")
	for i, m := range want {
		j.sayAs(uint32(i%3*1000), "kubelet", m)
	}
	f.until(len(want))
	testkit.Same(t, len(j.glob("user-*.journal")), 2, "files of users; otherwise the test is ineffective")
	// While following, a later file may be read a moment earlier. Afterwards the order is
	// fixed.
	got := f.texts()
	slices.Sort(got)
	slices.Sort(want)
	testkit.NoDiff(t, cmp.Diff(want, got), "live")
	f = follow(t, journal.Config{Path: j.persistent(), Identifier: "kubelet"})
	f.expect(messages(300, "message %d"))
}

func TestOnlyKernelEntriesHaveTheKernelFacility(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=volatile\nReadKMsg=no")
	j.send(field{"MESSAGE", "a lie"}, field{"SYSLOG_IDENTIFIER", "kernel"}, field{"SYSLOG_FACILITY", "0"}, field{"_TRANSPORT", "kernel"}, field{"PRIORITY", "2"})
	f := follow(t, journal.Config{Path: j.volatile(), Identifier: "kernel"})
	f.expect([]string{"a lie"})
	if got := f.lines[0]; got.Facility != logs.NoPriority || got.Priority != 2 {
		t.Errorf("facility %d and priority %d of a process that claims to be the kernel: want %d, 2", got.Facility, got.Priority, logs.NoPriority)
	}

	j = startJournald(t, "Storage=volatile\nReadKMsg=yes")
	kmsg, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	testkit.Require(t, err == nil, "%v: run this test as root, because it writes to the kernel log", err)
	mark := fmt.Sprintf("autohealer test %d", time.Now().UnixNano())
	// Without a newline the kernel holds the record back.
	_, err = kmsg.WriteString("<4>marker: " + mark + "\n")
	testkit.Must(t, errors.Join(err, kmsg.Close()))
	f = follow(t, journal.Config{Path: j.volatile()})
	for !slices.ContainsFunc(f.lines, func(l line) bool { return strings.Contains(l.text, mark) }) {
		f.until(len(f.lines) + 1)
	}
	// The kernel may write between the two reads. Then the test reads both again.
	kernel, own := 0, []journalctlEntry(nil)
	for range 10 {
		own = j.journalctl(j.volatile(), "kernel")
		if kernel = f.kernel(); kernel == len(own) {
			break
		}
		if kernel < len(own) {
			f.until(len(f.lines) + len(own) - kernel)
		}
	}
	t.Logf("%d lines of the kernel", kernel)
	kernel = f.kernel()
	testkit.Check(t, kernel == len(own), "%d lines are of the kernel, journalctl has %d", kernel, len(own))
	for _, l := range f.lines {
		testkit.Check(t, !strings.Contains(l.text, mark) || l.Facility != logs.Kernel, "%q was written by a program, not by the kernel", l.text)
	}
}

// kernel counts the lines of the kernel.
func (f *follower) kernel() (n int) {
	for _, l := range f.lines {
		if l.Facility == logs.Kernel {
			n++
		}
	}
	return n
}

func TestInvalidPositionIsIgnored(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=volatile\nReadKMsg=no")
	j.say("kubelet", "one")
	for _, from := range []string{"", "null", "[]", "{", `"somewhere"`, `{"files":[{"file":"short"}]}`, `{"done":{"x":1}}`, `{"files":[{"file":"00000000000000000000000000000000","taken":99}]}`} {
		f := follow(t, journal.Config{Path: j.volatile(), Identifier: "kubelet", From: logs.Position(from)})
		f.expect([]string{"one"})
		f.stop()
	}
}

func TestPathMayBeAFile(t *testing.T) {
	t.Parallel()
	j := startJournald(t, "Storage=volatile\nReadKMsg=no")
	j.say("kubelet", "archived")
	j.rotate()
	j.say("kubelet", "one")
	path := filepath.Join(j.volatile(), machine, "system.journal")
	f := follow(t, journal.Config{Path: path, Identifier: "kubelet"})
	f.until(1)
	j.rotate()
	j.say("kubelet", "two")
	f.expect([]string{"one", "two"})
	f.quiet()
}

func TestRelativePathIsRejected(t *testing.T) {
	_, err := journal.Open(journal.Config{Path: "var/log/journal"})
	testkit.Check(t, err != nil, "accepted")
}
