package filelog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

const (
	chunkSize   = 256 << 10 // read at once, at most
	longestLine = 64 << 10  // what is longer is cut there
)

// Config of a reader.
type Config struct {
	// Path of the file, absolute. It need not be there yet, nor its folder.
	Path string
	// From is where to go on. Without it the file is read from its beginning.
	From logs.Position
	// Log is told of rotations and gaps. Nobody is, if it is nil.
	Log *slog.Logger
}

// Validate says what is wrong with the configuration.
func (c Config) Validate() error {
	if !filepath.IsAbs(c.Path) {
		return fmt.Errorf("log file %q: its path is not absolute; write it from / on", c.Path)
	}
	return nil
}

// Counts are what happened to a reader since it was opened.
type Counts struct {
	// LongLines were cut, since they were longer than 64 KiB.
	LongLines uint64
	// Gaps are the times when the reader could not go on where it had been, and the
	// rotated files that disappeared before they were read. Each has lost an unknown
	// number of lines.
	Gaps uint64
}

// pace is how long a reader waits for what.
type pace struct {
	// quiet is how long a file that was rotated away must not have grown until its
	// successor is read: its writer may not have heard of the rotation yet.
	quiet time.Duration
	// linger is how long a file is away until that is said, and a removed file held.
	linger time.Duration
	// settle is the shortest time between two looks at a file that grows line by line.
	settle time.Duration
}

// Reader follows a file through its rotations. It is a logs.Reader.
type Reader struct {
	path  string
	log   *slog.Logger
	watch *watch
	pace  pace
	// longest is where lines are cut.
	longest int

	file *os.File    // that is read; nil while there is none
	stat unix.Stat_t // of file, when last looked at
	grew time.Time   // when something was last read from file, or it was opened

	// buf[start:end] was read and not handed on, and lies at offset in the file. Before
	// start there are always the last bytes that lie before it in the file, as many as
	// a fingerprint takes.
	buf        []byte
	start, end int
	offset     int64
	inLine     bool       // offset is in a line that was cut, and whose rest is passed over
	head       [span]byte // the file's first bytes, as far as they were read
	line       []byte     // one that gets a newline which the file does not have

	from  *place // where to go on when there is no file
	after *place // on which the beginning of file follows, until something of it was read
	done  bool   // all that there was at from was read
	// earlier are the files that were read to their ends before the one that is read.
	earlier []fingerprint
	absent  time.Time // since when there is nothing at the path
	said    string    // the last trouble that was told
	handed  time.Time // when the last chunk was

	longLines, gaps atomic.Uint64
}

// Open returns a reader of a file. Whatever is wrong with the file is said by Next.
func Open(cfg Config) (*Reader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Reader{
		path: filepath.Clean(cfg.Path),
		log:  cfg.Log,
		pace: pace{quiet: time.Second, linger: 5 * time.Second, settle: 10 * time.Millisecond},
		buf:  make([]byte, span+chunkSize),

		longest: longestLine,
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.log = r.log.With("path", r.path)
	if len(cfg.From) > 0 {
		from, err := parsePlace(cfg.From)
		if err != nil {
			r.log.Warn("the place in the file is not understood, reading from its beginning", "err", err)
			r.gaps.Add(1)
		} else {
			r.from = &from
		}
	}
	r.watch = newWatch(r.path, r.log)
	return r, nil
}

// Close ends the reading.
func (r *Reader) Close() error {
	return errors.Join(r.release(), r.watch.close())
}

// Counts may be asked for at any time, by anybody.
func (r *Reader) Counts() Counts {
	return Counts{LongLines: r.longLines.Load(), Gaps: r.gaps.Load()}
}

// Next waits for more lines. What is wrong with the file is said once, until it has
// changed.
func (r *Reader) Next(ctx context.Context) (logs.Chunk, error) {
	for {
		if err := ctx.Err(); err != nil {
			return logs.Chunk{}, err
		}
		r.watch.follow(r.file)
		chunk, wait, err := r.look(time.Now())
		if err != nil && err.Error() != r.said {
			r.said = err.Error()
			return logs.Chunk{}, err
		}
		if err != nil && !errors.Is(err, logs.ErrNotExist) {
			wait = slowLook // nobody may tell when it is over
		}
		if len(chunk.Text) > 0 {
			r.handed = time.Now()
			return chunk, nil
		}
		if r.watch.stale || r.watch.held != r.file {
			continue // something may have happened to what was not watched yet
		}
		if err := r.watch.wait(ctx, wait); err != nil {
			return logs.Chunk{}, err
		}
		if err := rest(ctx, r.pace.settle-time.Since(r.handed)); err != nil {
			return logs.Chunk{}, err
		}
	}
}

// rest does nothing for a while.
func rest(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// look returns the next lines that are there. If there are none it says for how long
// to wait for a sign; zero is for ever.
func (r *Reader) look(now time.Time) (logs.Chunk, time.Duration, error) {
	r.watch.drain()
	r.watch.noticed = false
	defer r.countLost()
	for {
		if r.file == nil {
			if err := r.resume(now); err != nil || r.file == nil {
				return logs.Chunk{}, 0, err
			}
		}
		chunk, err := r.read(now)
		if err != nil || len(chunk.Text) > 0 {
			return chunk, 0, err
		}
		if r.file == nil {
			continue
		}
		chunk, wait, err := r.moveOn(now)
		if err != nil || wait != again {
			return chunk, wait, err
		}
	}
}

// countLost counts the files that disappeared before they were read.
func (r *Reader) countLost() {
	if lost := r.watch.unread.take(); lost > 0 {
		r.log.Warn("rotated files disappeared before they were read, their lines are lost; rotate less often, or keep more files", "files", lost)
		r.gaps.Add(uint64(lost))
	}
}

// next sees the files that follow on a place, and whether the file of the place has a
// name. It looks until nothing has happened meanwhile, so that what it has seen and what
// the kernel has told are of one moment.
func (r *Reader) next(p place) ([]sighting, bool, error) {
	for look := 0; ; look++ {
		next, there, err := successors(r.path, p, r.watch.unread.files)
		if !r.watch.drain() || look == mostLooks {
			r.watch.unread.expect(next)
			return next, there, err
		}
	}
}

// countUnknown counts a gap if the file that was read last has no name and nothing tells
// whether others came and went since.
func (r *Reader) countUnknown(there bool) {
	if !there && r.watch.isBlind() {
		r.log.Warn("the file that was read last is gone, and others may have come and gone since: lines may be lost")
		r.gaps.Add(1)
	}
	r.watch.missed = false
}

// again, as a time to wait, says to look once more at once.
const again = -1

// read returns the next lines of the file that is open, if there are any. It leaves
// the file if that holds something else by now and there is no copy to go on in.
func (r *Reader) read(now time.Time) (logs.Chunk, error) {
	for {
		if chunk := r.take(); len(chunk.Text) > 0 {
			return chunk, nil
		}
		n, intact, err := r.fill()
		switch {
		case err != nil:
			err = fmt.Errorf("reading %s: %w", r.file.Name(), err)
			r.leave(false) // a file of a server that is gone must be opened anew
			return logs.Chunk{}, err
		case !intact:
			if chunk, err := r.truncated(now); err != nil || len(chunk.Text) > 0 || r.file == nil {
				return chunk, err
			}
		case n == 0:
			return logs.Chunk{}, nil
		default:
			r.grew = now
			if follows, err := r.follows(); err != nil || !follows {
				r.leave(true)
				return logs.Chunk{}, err
			}
			r.after = nil
		}
	}
}

// follows says whether the file, from which something was read for the first time, holds
// what comes next. Before the reading it could have been copied and truncated, and there
// was nothing yet to tell by; but then there is a copy to be read before.
func (r *Reader) follows() (bool, error) {
	if r.after == nil {
		return true, nil
	}
	next, _, err := r.next(*r.after)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // it has lost its name since
	}
	return err == nil && (!next[0].rotated || next[0].is(r.place())), err
}

// take returns those of the pending bytes that are whole lines.
func (r *Reader) take() logs.Chunk {
	p := split(r.buf[r.start:r.end], r.inLine, r.longest)
	r.start += p.drop
	r.offset += int64(p.drop)
	r.inLine = p.inLine
	if p.take == 0 {
		return logs.Chunk{}
	}
	text := r.buf[r.start : r.start+p.take]
	if p.cut {
		r.longLines.Add(1)
		r.inLine = true
		text = r.ended(text)
	}
	chunk := r.handOn(text, p.take)
	chunk.More = r.end == len(r.buf) || bytes.IndexByte(r.buf[r.start:r.end], '\n') >= 0 || !r.isLast()
	return chunk
}

// isLast says whether no other file follows on the one that is open: it is the one at the
// path.
func (r *Reader) isLast() bool {
	var stat unix.Stat_t
	return unix.Stat(r.path, &stat) == nil && stat.Dev == r.stat.Dev && stat.Ino == r.stat.Ino
}

// ended returns a copy of half a line, with a newline.
func (r *Reader) ended(half []byte) []byte {
	r.line = append(append(r.line[:0], half...), '\n')
	return r.line
}

// handOn makes a chunk of a text that takes so many of the pending bytes.
func (r *Reader) handOn(text []byte, taken int) logs.Chunk {
	first := r.offset
	r.start += taken
	r.offset += int64(taken)
	return logs.Chunk{Text: text, First: uint64(first), Next: r.place().position()}
}

// flush hands on half a line that will not be ended any more, as there is another file.
func (r *Reader) flush() logs.Chunk {
	half := r.buf[r.start:r.end]
	if len(half) == 0 {
		return logs.Chunk{}
	}
	chunk := r.handOn(r.ended(half), len(half))
	chunk.More = true
	return chunk
}

// fill reads on, and says whether the file still holds what it held before.
func (r *Reader) fill() (n int, intact bool, err error) {
	keep := min(span, r.start)
	copy(r.buf, r.buf[r.start-keep:r.end])
	r.start, r.end = keep, keep+r.end-r.start

	point := r.offset + int64(r.end-r.start)
	n, err = r.file.ReadAt(r.buf[r.end:], point)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, false, err
	}
	// Only now it is looked whether the file was truncated meanwhile: what was read
	// before a truncation that is seen later is right anyway, since the copy has it.
	intact, err = r.intact(point)
	if err != nil || !intact {
		return 0, false, err
	}
	if point < span {
		copy(r.head[point:], r.buf[r.end:r.end+n])
	}
	r.end += n
	if n > 0 && !r.inLine && allZero(r.buf[r.start:r.end]) {
		err = r.skipHole()
	}
	return n, true, err
}

// intact says whether the file holds before the point what was read from there.
func (r *Reader) intact(point int64) (bool, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(r.file.Fd()), &stat); err != nil {
		return false, err
	}
	known := min(span, point)
	same, err := holds(r.file, 0, r.head[:known])
	if err != nil || !same {
		return false, err
	}
	same, err = holds(r.file, point-known, r.buf[int64(r.end)-known:r.end])
	if err != nil || !same {
		return false, err
	}
	r.stat = stat
	return true, nil
}

// skipHole passes over the part of a file that was never written, without reading it:
// a writer that does not append leaves as much of it as there was before a truncation.
func (r *Reader) skipHole() error {
	point := r.offset + int64(r.end-r.start)
	data, err := unix.Seek(int(r.file.Fd()), point, unix.SEEK_DATA)
	if err != nil || data <= point {
		return nil //nolint:nilerr // nothing but hole, or nobody knows: then it is read
	}
	return r.goTo(data)
}

// goTo makes the reader go on at an offset of the file that is open.
func (r *Reader) goTo(offset int64) error {
	known := min(span, offset)
	if _, err := io.ReadFull(io.NewSectionReader(r.file, 0, known), r.head[:known]); err != nil {
		return err
	}
	if _, err := io.ReadFull(io.NewSectionReader(r.file, offset-known, known), r.buf[:known]); err != nil {
		return err
	}
	r.start, r.end, r.offset = int(known), int(known), offset
	return nil
}

// goOn makes a file the one that is read, from a place in it. If it does not hold what
// the place says any more, no file is left open, and the place is looked for again.
func (r *Reader) goOn(file *os.File, at place, now time.Time) error {
	if err := r.adopt(file, at.Offset, now); err != nil {
		return err
	}
	r.inLine = at.InLine
	r.earlier = at.Earlier
	if here := r.place(); here.Head != at.Head || here.Tail != at.Tail {
		r.from, r.done = &at, false
		return r.release()
	}
	if !r.isLast() {
		_, _, err := r.next(r.place()) // to know of them when they disappear
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// begin makes a file the one that is read, from its beginning. It follows on a place, if
// there is one, in another file, and is followed by others.
func (r *Reader) begin(file *os.File, after *place, others []sighting, now time.Time) error {
	err := r.adopt(file, 0, now)
	if err != nil {
		return err
	}
	r.watch.unread.expect(others)
	if r.after = after; after != nil {
		r.earlier = after.followed()
	}
	return nil
}

// adopt goes to an offset of another file. If it cannot, the reader stays where it was.
func (r *Reader) adopt(file *os.File, offset int64, now time.Time) error {
	if r.file != nil {
		r.leave(r.done)
	}
	r.file = file
	err := unix.Fstat(int(file.Fd()), &r.stat)
	if err == nil {
		err = r.goTo(offset)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("reading %s: %w", file.Name(), err), r.release())
	}
	r.inLine, r.grew = false, now
	r.from, r.after, r.done = nil, nil, false
	return nil
}

// release closes the file that is open.
func (r *Reader) release() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}

// leave gives the open file up at the place that was reached.
func (r *Reader) leave(done bool) {
	here := r.place()
	r.from, r.done = &here, done
	if r.after != nil { // nothing was read here
		r.from, r.done = r.after, true
	}
	if err := r.release(); err != nil {
		r.log.Warn("closing what was read", "err", err)
	}
}

// truncated goes on in the copy that was made of the file, or gives the file up.
func (r *Reader) truncated(now time.Time) (logs.Chunk, error) {
	file, err := find(r.path, r.placeAt(r.end))
	if err != nil {
		return logs.Chunk{}, err
	}
	if file != nil {
		r.log.Info("the file was truncated, going on in its copy", "copy", file.Name(), "offset", r.offset)
		if _, there, _ := r.next(r.place()); !there && r.hasLines() {
			r.log.Warn("the truncated file is gone, its lines are lost")
			r.gaps.Add(1)
		}
		return logs.Chunk{}, r.goOn(file, r.place(), now)
	}
	r.log.Warn("the file was truncated and there is no copy of it, going on at its beginning", "offset", r.offset)
	r.gaps.Add(1)
	chunk := r.flush()
	r.leave(true)
	return chunk, nil
}

// hasLines says whether the open file is not empty.
func (r *Reader) hasLines() bool {
	info, err := r.file.Stat()
	return err == nil && info.Size() > 0
}

// resume opens the file that is to be read next, at the place where to go on. There is
// none yet if no file is left open and there is no error.
func (r *Reader) resume(now time.Time) error {
	if r.from == nil {
		file, err := openRegular(r.path)
		if err != nil {
			return r.away(now, err)
		}
		return r.begin(file, nil, nil, now)
	}
	if !r.done {
		file, err := find(r.path, *r.from)
		if err != nil {
			return err
		}
		if file != nil {
			return r.goOn(file, *r.from, now)
		}
	}
	followers, there, err := r.next(*r.from)
	if err != nil {
		return r.away(now, err)
	}
	next := followers[0]
	r.absent, r.said = time.Time{}, ""
	if next.size == 0 {
		return nil // until it has lines, what was read last is the better place to know
	}
	file, err := next.open()
	if errors.Is(err, errOther) {
		return nil // that it has come is told
	}
	if err != nil {
		return r.away(now, err)
	}
	if r.done {
		r.countUnknown(there)
	} else {
		r.log.Warn("what was read last is gone, lines may be lost", "next", next.path)
		r.gaps.Add(1)
	}
	return r.begin(file, r.from, followers[1:], now)
}

// away turns the absence of the file into what is said of it.
func (r *Reader) away(now time.Time, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if r.absent.IsZero() {
		r.absent = now
	}
	return fmt.Errorf("reading %s: %w", r.path, logs.ErrNotExist)
}

// moveOn decides what to do at the end of the file: wait, or go on with the next.
func (r *Reader) moveOn(now time.Time) (logs.Chunk, time.Duration, error) {
	none := logs.Chunk{}
	current, err := lookAt(r.path)
	here := r.place()
	switch {
	case err == nil && current.is(here):
		r.absent, r.said = time.Time{}, ""
		r.watch.unread.expect(nil)
		r.watch.missed = false
		return none, 0, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return none, 0, err
	case err == nil:
		r.absent, r.said = time.Time{}, ""
	case r.absent.IsZero():
		r.absent = now
	}

	if r.after != nil {
		here = *r.after // nothing was read since
	}
	followers, there, err := r.next(here)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return none, 0, err
	}
	if missing || followers[0].size == 0 {
		return r.hold(now, missing)
	}
	if still := r.quietFor(now); still < r.pace.quiet {
		return none, r.pace.quiet - still, nil
	}
	// The next one has lines; whatever came into this one before them is there now.
	last := r.file
	if chunk, err := r.read(now); err != nil || len(chunk.Text) > 0 {
		return chunk, 0, err
	}
	if r.file != last {
		return none, again, nil // truncated just now
	}
	if chunk := r.flush(); len(chunk.Text) > 0 {
		return chunk, 0, nil
	}
	file, err := followers[0].open()
	if errors.Is(err, errOther) || errors.Is(err, fs.ErrNotExist) {
		return none, again, nil // rotated once more just now
	}
	if err != nil {
		return none, 0, err
	}
	r.countUnknown(there)
	r.log.Info("the file was rotated, going on with the next", "next", file.Name())
	return none, again, r.begin(file, &here, followers[1:], now)
}

// hold waits for the next file to have lines, and holds the last one meanwhile, for
// its writer may still have it open; but not for ever if that keeps a removed file on
// its disk.
func (r *Reader) hold(now time.Time, missing bool) (logs.Chunk, time.Duration, error) {
	none := logs.Chunk{}
	var err error
	var wait time.Duration
	if missing {
		if gone := now.Sub(r.absent); gone < r.pace.linger {
			wait = r.pace.linger - gone
		} else {
			err = r.away(now, fs.ErrNotExist)
		}
	}
	if r.stat.Nlink > 0 {
		return none, wait, err
	}
	if still := r.quietFor(now); still < r.pace.linger {
		return none, r.pace.linger - still, nil
	}
	if chunk := r.flush(); len(chunk.Text) > 0 {
		return chunk, 0, nil
	}
	r.leave(true)
	return none, again, nil
}

// quietFor says for how long the file has not grown, as far as is known.
func (r *Reader) quietFor(now time.Time) time.Duration {
	return max(now.Sub(r.grew), now.Sub(time.Unix(r.stat.Mtim.Unix())))
}
