package filelog

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// The model truncates lines early and has small chunks, so that a few lines exercise what
// otherwise takes megabytes.
const (
	modelLongest = 300
	modelChunk   = 700
)

// storedFile is a file that contains lines. Lines in a deleted file may be lost.
type storedFile struct{ gone bool }

// written is a line that was written, as the reader should return it.
type written struct {
	text string
	home *storedFile
	// uncounted says that the line may be lost without a gap. Its file was deleted or rotated
	// when it was written, and a rotated file that was empty has nothing to lose; or the reader
	// has read it, lost that in a crash, and found an earlier file.
	uncounted bool
}

// is says whether a returned line is this line. A part of it may have been read before its
// file was deleted. The part may have any length, because a read ends where the buffer ends.
func (l written) is(told string) bool {
	return l.text == told || l.home.gone && told != "" && strings.HasPrefix(l.text, told)
}

// model is a log with its writer, its rotation and its reader. It knows which lines the
// reader should return.
type model struct {
	t      *rapid.T
	steps  map[string]int
	path   string
	dated  bool // rotated files get a date instead of a number
	keeps  bool // no file is deleted or compressed, so no line may be lost
	clock  time.Time
	number int

	writer  *os.File
	current *storedFile // the file that the writer writes to
	named   bool        // the writer's file is at the path
	half    string
	copying string   // name of an unfinished copy, which a truncation will follow
	rotated []string // from the newest
	files   map[string]*storedFile
	lines   []written
	deleted []*os.File // deleted files whose inodes stay in use

	reader   *Reader
	returned []string
	position logs.Position
	earlier  []point // positions of the reader, from the last chunk back
	gaps     uint64  // counted by closed readers
}

// point is a position, and the number of lines returned before it.
type point struct {
	position logs.Position
	returned int
}

// tick sets the modification time of a file. It may decide the order of files, and the
// clock of the disk is too coarse for the model.
func (w *model) tick(file *os.File) {
	w.clock = w.clock.Add(time.Second)
	testkit.Must(w.t, os.Chtimes(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), w.clock, w.clock))
}

// reopen is what a writer does after a rotation.
func (w *model) reopen() {
	if w.writer != nil {
		if w.named {
			return
		}
		w.finish()
		testkit.Must(w.t, w.writer.Close())
	}
	flags := os.O_CREATE | os.O_WRONLY
	if rapid.Bool().Draw(w.t, "appends") {
		flags |= os.O_APPEND
	}
	w.writer = testkit.Value(os.OpenFile(w.path, flags, 0o600)).Must(w.t)
	w.current, w.named = &storedFile{}, true
	w.files[w.path] = w.current
	w.tick(w.writer)
	w.steps["reopen"]++
}

// finish makes a line of an incomplete line that will not be completed.
func (w *model) finish() {
	if w.half != "" {
		w.line(w.half)
		w.half = ""
		w.steps["half line left"]++
	}
}

func (w *model) line(text string) {
	text = text[:min(len(text), modelLongest)]
	w.lines = append(w.lines, written{text, w.current, w.current.gone || !w.named})
}

func (w *model) put(text string) {
	testkit.Value(w.writer.WriteString(text)).Must(w.t)
	w.tick(w.writer)
}

// skipRest skips a step that would continue a line in a deleted file: the reader waits for
// the rest of the line only for a while, and then returns its start.
func (w *model) skipRest() {
	if w.half != "" && w.current.gone {
		w.t.Skip("the start of the line may have been returned")
	}
}

func (w *model) write() {
	w.skipRest()
	for range rapid.IntRange(1, 8).Draw(w.t, "lines") {
		text := w.half
		if text == "" {
			text = w.fresh()
			w.put(text)
		}
		w.put(" ends\n")
		w.half = ""
		w.line(text + " ends")
		w.steps["write"]++
	}
}

// fresh returns a unique line, which is sometimes too long.
func (w *model) fresh() string {
	w.number++
	text := fmt.Sprintf("%08d", w.number)
	if rapid.IntRange(0, 9).Draw(w.t, "long") == 0 {
		text += strings.Repeat("x", rapid.IntRange(0, 4*modelLongest).Draw(w.t, "length"))
		w.steps["long line"]++
	}
	return text
}

func (w *model) writeHalf() {
	w.skipRest()
	more := "y"
	if w.half == "" {
		more = w.fresh()
	}
	w.half += more
	w.put(more)
	w.steps["half line"]++
}

// away renames older rotated files, and returns the name for a new one.
func (w *model) away() string {
	for len(w.rotated) > 1 && !w.keeps {
		oldest := w.rotated[len(w.rotated)-1]
		w.unlink(oldest)
		w.rotated = w.rotated[:len(w.rotated)-1]
	}
	if w.dated {
		w.number++
		name := fmt.Sprintf("%s-%08d", w.path, 20260000+w.number)
		w.rotated = slices.Insert(w.rotated, 0, name)
		return name
	}
	for i := len(w.rotated) - 1; i >= 0; i-- {
		from := w.rotated[i]
		var n int
		testkit.Value(fmt.Sscanf(strings.TrimPrefix(from, w.path), ".%d", &n)).Must(w.t)
		to := fmt.Sprintf("%s.%d", w.path, n+1)
		testkit.Must(w.t, os.Rename(from, to))
		w.files[to] = w.files[from]
		w.rotated[i] = to
	}
	w.rotated = slices.Insert(w.rotated, 0, w.path+".1")
	return w.path + ".1"
}

// unlink deletes a file. A file in which the reader was keeps its inode until the end: the
// reader tells a new file with the same inode by the time of its creation, and the steps of
// the model are faster than the clock of the disk.
func (w *model) unlink(name string) {
	info := testkit.Value(statFile(name)).Must(w.t)
	if slices.ContainsFunc(w.earlier, func(p point) bool {
		at := testkit.Value(parsePosition(p.position)).Must(w.t)
		return info.is(at)
	}) {
		file := testkit.Value(os.Open(name)).Must(w.t)
		w.deleted = append(w.deleted, file)
	}
	testkit.Must(w.t, os.Remove(name))
	w.files[name].gone = true
}

func (w *model) rename() {
	if !w.named || w.copying != "" {
		w.t.Skip("nothing to rename")
	}
	name := w.away()
	testkit.Must(w.t, os.Rename(w.path, name))
	w.files[name] = w.current
	w.named = false
	w.steps["rename"]++
}

// beginCopy copies a part of the file, like an unfinished copy.
func (w *model) beginCopy() {
	if !w.named || w.copying != "" {
		w.t.Skip("nothing to copy")
	}
	w.copying = w.away()
	text := testkit.Value(os.ReadFile(w.path)).Must(w.t)
	w.copy(text[:rapid.IntRange(0, len(text)).Draw(w.t, "copied")])
	w.files[w.copying] = &storedFile{} // everything in it also exists elsewhere
	w.steps["begin of a copy"]++
}

// copy extends the copy.
func (w *model) copy(text []byte) {
	to := testkit.Value(os.OpenFile(w.copying, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)).Must(w.t)
	testkit.Value(to.Write(text)).Must(w.t)
	w.tick(to)
	testkit.Must(w.t, to.Close())
}

func (w *model) copyAndTruncate() {
	if w.copying == "" {
		w.beginCopy()
	}
	w.finish()
	text := testkit.Value(os.ReadFile(w.path)).Must(w.t)
	info := testkit.Value(os.Stat(w.copying)).Must(w.t)
	w.copy(text[info.Size():])
	testkit.Must(w.t, os.Truncate(w.path, 0))
	w.tick(w.writer)
	w.files[w.copying] = w.current
	w.current = &storedFile{}
	w.files[w.path] = w.current
	w.copying = ""
	w.steps["copy and truncate"]++
}

func (w *model) remove() {
	if !w.named || w.keeps || w.copying != "" {
		w.t.Skip("nothing to remove")
	}
	w.unlink(w.path)
	w.named = false
	w.steps["remove"]++
}

// pack compresses the oldest rotated file, but not the newest, like a tool for rotation.
func (w *model) pack() {
	if len(w.rotated) < 2 || w.keeps || w.copying != "" {
		w.t.Skip("nothing to pack")
	}
	oldest := len(w.rotated) - 1
	name := w.rotated[oldest]
	testkit.Must(w.t, os.WriteFile(name+".gz", []byte("packed\n"), 0o600))
	w.unlink(name)
	w.rotated = w.rotated[:oldest]
	w.steps["pack"]++
}

// duplicate copies a rotated file to a name of another rotation, like an archiver, and may
// delete the original. The writer no longer uses it.
func (w *model) duplicate() {
	if len(w.rotated) == 0 || !w.named || w.copying != "" || !w.dated {
		w.t.Skip("nothing to copy")
	}
	original := w.rotated[0]
	removed := !w.keeps && rapid.Bool().Draw(w.t, "original removed")
	if removed {
		// A file that is copied and deleted before it was read counts as lost. Archivers do
		// not keep the modification time, so the position must be stored by then.
		w.readChunks(1 << 20)
		w.earlier = w.earlier[len(w.earlier)-1:]
	}
	text := testkit.Value(os.ReadFile(original)).Must(w.t)
	name := original + ".1"
	if _, err := os.Stat(name); err == nil {
		w.t.Skip("copied already")
	}
	to := testkit.Value(os.Create(name)).Must(w.t)
	testkit.Value(to.Write(text)).Must(w.t)
	w.tick(to)
	testkit.Must(w.t, to.Close())
	w.steps["copy of a rotated file"]++
	if removed {
		home := w.files[original]
		w.files[original] = &storedFile{} // the copy has everything in it
		w.unlink(original)
		w.files[name] = home
		w.rotated[0] = name
	} else {
		w.files[name] = &storedFile{}
		w.rotated = slices.Insert(w.rotated, 0, name)
	}
}

// read makes the reader return some chunks.
func (w *model) read() {
	w.readChunks(rapid.IntRange(1, 6).Draw(w.t, "chunks"))
	w.steps["read"]++
}

// readChunks reads a limited number of chunks.
func (w *model) readChunks(most int) {
	for range most {
		w.reader.watch.follow(w.reader.open.file)
		chunk, _, err := w.reader.look(time.Now())
		if errors.Is(err, logs.ErrNotExist) {
			w.steps["away"]++
			return
		}
		testkit.Must(w.t, err)
		if len(chunk.Text) == 0 {
			return
		}
		text, ended := bytes.CutSuffix(chunk.Text, []byte("\n"))
		testkit.Require(w.t, ended, "a chunk ends within a line: %q", chunk.Text)
		w.returned = append(w.returned, strings.Split(string(text), "\n")...)
		w.position = chunk.Next
		w.earlier = append(w.earlier, point{w.position, len(w.returned)})
	}
}

func (w *model) restart() {
	w.reopenReader()
	w.steps["restart"]++
}

// crash restarts the reader at an earlier position.
func (w *model) crash() {
	back := rapid.IntRange(0, min(5, len(w.earlier)-1)).Draw(w.t, "back")
	w.earlier = w.earlier[:len(w.earlier)-back]
	last := w.earlier[len(w.earlier)-1]
	w.position = last.position
	w.returned = w.returned[:last.returned]
	for i := range w.lines {
		w.lines[i].uncounted = w.lines[i].uncounted || w.lines[i].home.gone
	}
	w.reopenReader()
	w.steps["crash"]++
}

// reopenReader opens a new reader, which looks at the files before anything else happens.
func (w *model) reopenReader() {
	testkit.Must(w.t, w.reader.Close())
	w.gaps += w.reader.Counts().Gaps
	w.open()
	w.readChunks(1)
}

func (w *model) open() {
	r := testkit.Value(Open(Config{Path: w.path, From: w.position})).Must(w.t)
	r.delays = delays{}
	r.longest = modelLongest
	r.open.buf = make([]byte, span+modelChunk)
	w.reader = r
}

// check compares the returned lines with the written ones. Lost lines must be in a counted
// gap, and there must be no gap if no line can be lost.
func (w *model) check() {
	next, lost := 0, 0
	skip := func() {
		if !w.lines[next].uncounted {
			lost++
		}
		next++
		w.steps["lost with its file"]++
	}
	for i, text := range w.returned {
		for next < len(w.lines) && !w.lines[next].is(text) && w.lines[next].home.gone {
			skip()
		}
		testkit.Require(w.t, next != len(w.lines) && w.lines[next].is(text), "returned line %d is %q\nwritten were %s", i, text, w.around(next))
		next++
	}
	for next < len(w.lines) {
		if !w.lines[next].home.gone {
			w.t.Fatalf("not returned at the end: %q", w.lines[next].text)
		}
		skip()
	}
	gaps := w.gaps + w.reader.Counts().Gaps
	testkit.Require(w.t, lost == 0 || gaps != 0, "%d lines are lost, but no gap was counted", lost)
	testkit.Require(w.t, !w.keeps || gaps == 0, "%d gaps were counted, but no line can be lost", gaps)
	if lost > 0 {
		w.steps["lost and counted"]++
	}
}

func (w *model) around(i int) string {
	var text strings.Builder
	for _, l := range w.lines[max(0, i-2):min(len(w.lines), i+3)] {
		fmt.Fprintf(&text, "%q (gone: %v) ", l.text, l.home.gone)
	}
	return text.String()
}

// explore is set by make rotations. Without it the test plays the same sequences each time:
// a sequence that no real tool would produce must not fail an unrelated change.
var explore = flag.Bool("explore", false, "play new random sequences of rotations")

func TestRandomRotationsReturnEveryLineOnceAndInOrder(t *testing.T) {
	if seed := flag.Lookup("rapid.seed").Value; !*explore && seed.String() == "0" {
		testkit.Must(t, seed.Set("1"))
		defer seed.Set("0") //nolint:errcheck // it has been set before
	}
	steps := map[string]int{}
	told, kept := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		folder := testkit.Value(os.MkdirTemp("", "filelog")).Must(t)
		defer os.RemoveAll(folder)
		w := &model{
			t: t, steps: steps, files: map[string]*storedFile{}, clock: time.Now().Add(-24 * time.Hour),
			path: filepath.Join(folder, "messages"), dated: rapid.Bool().Draw(t, "dated"),
			keeps: rapid.Bool().Draw(t, "keeps"),
		}
		w.reopen()
		w.put("begin\n")
		w.line("begin")
		w.open()
		defer func() {
			w.reader.Close()
			for _, file := range w.deleted {
				file.Close()
			}
		}()
		w.readChunks(1)
		t.Repeat(map[string]func(*rapid.T){
			"write": func(*rapid.T) { w.write() }, "half": func(*rapid.T) { w.writeHalf() },
			"rename": func(*rapid.T) { w.rename() }, "copy": func(*rapid.T) { w.copyAndTruncate() },
			"begin copy": func(*rapid.T) { w.beginCopy() },
			"remove":     func(*rapid.T) { w.remove() }, "reopen": func(*rapid.T) { w.reopen() },
			"duplicate": func(*rapid.T) { w.duplicate() },
			"pack":      func(*rapid.T) { w.pack() }, "read": func(*rapid.T) { w.read() },
			"restart": func(*rapid.T) { w.restart() }, "crash": func(*rapid.T) { w.crash() },
		})
		if w.copying != "" {
			w.copyAndTruncate()
		}
		w.reopen()
		w.write()
		w.readChunks(1 << 20)
		w.check()
		told += len(w.returned)
		if w.keeps {
			kept += len(w.returned)
		}
		testkit.Must(w.t, w.writer.Close())
	})
	t.Logf("%d lines told, %d of them where all must be; steps: %v", told, kept, steps)
	for _, step := range []string{
		"write", "half line", "half line left", "long line", "rename", "begin of a copy", "copy and truncate", "remove", "reopen",
		"pack", "read", "restart", "crash", "away", "lost with its file", "lost and counted", "copy of a rotated file",
	} {
		testkit.Check(t, steps[step] != 0, "the model never did this: %s", step)
	}
	testkit.Check(t, kept >= 200, "only %d lines were returned in runs without losses: the test is ineffective", kept)
}
