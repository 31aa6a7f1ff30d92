package filelog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

const (
	chunkSize = 256 << 10 // largest read
	maxLine   = 64 << 10  // longer lines are truncated
)

// Config configures a reader.
type Config struct {
	// Path is the absolute path of the file. The file and its directory need not exist yet.
	Path string
	// From is the position to continue at. If it is empty, the reader starts at the
	// beginning.
	From logs.Position
	// Log receives rotations and gaps. It may be nil.
	Log *slog.Logger
}

// Validate returns an error if the configuration is invalid.
func (c Config) Validate() error {
	if !filepath.IsAbs(c.Path) {
		return fmt.Errorf("log file %q: the path is not absolute; use an absolute path", c.Path)
	}
	return nil
}

// Counts are the totals of a reader.
type Counts struct {
	// LongLines counts lines that were truncated to 64 KiB.
	LongLines uint64
	// Gaps counts how often the reader could not continue at its position, and rotated files
	// that were deleted before they were read. Each gap has lost an unknown number of lines.
	Gaps uint64
}

// delays are the waiting times of a reader.
type delays struct {
	// quiet is how long a rotated file must not have grown before the reader continues with
	// its successor. The writer may still use the rotated file.
	quiet time.Duration
	// linger is how long the reader waits before it reports a missing file, and how long it
	// keeps a deleted file open.
	linger time.Duration
	// settle is the shortest time between two reads of a file that grows line by line.
	settle time.Duration
}

// Reader follows a file through its rotations. It is a logs.Reader.
type Reader struct {
	path   string
	log    *slog.Logger
	watch  *watch
	delays delays
	// longest is the length at which lines are truncated.
	longest int

	open  openFile
	from  *filePosition // position to continue at if no file is open
	after *filePosition // position that the open file follows, until something was read from it
	done  bool          // everything at from was read

	absent    time.Time // since when no file exists at the path
	lastError string    // the last returned error
	lastChunk time.Time // when the last chunk was returned

	longLines, gaps atomic.Uint64
}

// Open returns a reader of a file. Errors of the file are returned by Next.
func Open(cfg Config) (*Reader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Reader{
		path:   filepath.Clean(cfg.Path),
		log:    cfg.Log,
		delays: delays{quiet: time.Second, linger: 5 * time.Second, settle: 10 * time.Millisecond},
		open:   openFile{buf: make([]byte, span+chunkSize)},

		longest: maxLine,
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.log = r.log.With("path", r.path)
	if len(cfg.From) > 0 {
		from, err := parsePosition(cfg.From)
		if err != nil {
			r.log.Warn("ignoring an invalid position: reading the file from its start", "err", err)
			r.gaps.Add(1)
		} else {
			r.from = &from
		}
	}
	r.watch = newWatch(r.path, r.log)
	return r, nil
}

// Close closes the reader. It counts files that were deleted until then, because the next
// reader cannot know of them.
func (r *Reader) Close() error {
	r.watch.drain()
	r.countLost()
	return errors.Join(r.open.close(), r.watch.close())
}

// Counts returns the totals. It is safe for concurrent use.
func (r *Reader) Counts() Counts {
	return Counts{LongLines: r.longLines.Load(), Gaps: r.gaps.Load()}
}

// Next waits for more lines. It returns each error of the file once, until the error
// changes.
func (r *Reader) Next(ctx context.Context) (logs.Chunk, error) {
	for {
		if err := ctx.Err(); err != nil {
			return logs.Chunk{}, err
		}
		r.watch.follow(r.open.file)
		chunk, wait, err := r.look(time.Now())
		if err != nil && err.Error() != r.lastError {
			r.lastError = err.Error()
			return logs.Chunk{}, err
		}
		if err != nil && !errors.Is(err, logs.ErrNotExist) {
			wait = pollInterval // no event may announce that the error is gone
		}
		if len(chunk.Text) > 0 {
			r.lastChunk = time.Now()
			return chunk, nil
		}
		if r.watch.stale || r.watch.held != r.open.file {
			continue // the change may have happened before the watch was added
		}
		if err := r.watch.wait(ctx, wait); err != nil {
			return logs.Chunk{}, err
		}
		if err := sleep(ctx, r.delays.settle-time.Since(r.lastChunk)); err != nil {
			return logs.Chunk{}, err
		}
	}
}

// sleep waits for a duration or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
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

// look returns the next available lines. If there are none, it returns how long to wait
// for an event; zero means without limit.
func (r *Reader) look(now time.Time) (logs.Chunk, time.Duration, error) {
	r.watch.drain()
	r.watch.noticed = false
	defer r.countLost()
	for {
		if r.open.file == nil {
			if err := r.resume(now); err != nil || r.open.file == nil {
				return logs.Chunk{}, 0, err
			}
		}
		chunk, err := r.read(now)
		if err != nil || len(chunk.Text) > 0 {
			return chunk, 0, err
		}
		if r.open.file == nil {
			continue
		}
		chunk, wait, err := r.moveOn(now)
		if err != nil || wait != again {
			return chunk, wait, err
		}
	}
}

// countLost counts files that were deleted before they were read.
func (r *Reader) countLost() {
	if lost := r.watch.unread.take(); lost > 0 {
		r.log.Warn("rotated files were deleted before they were read, their lines are lost; rotate less often, or keep more files", "files", lost)
		r.gaps.Add(uint64(lost))
	}
}

// next returns the files to read after a position: those with lines, and the file at the
// path. It also says whether the file of the position has a name. It repeats until no event arrives meanwhile, so that the directory and the
// events describe the same moment.
func (r *Reader) next(p filePosition) ([]fileInfo, bool, error) {
	for look := 0; ; look++ {
		next, there, err := successors(r.path, p, r.watch.unread.files)
		if !r.watch.drain() || look == maxScans {
			r.watch.unread.expect(next)
			return slices.DeleteFunc(next, func(s fileInfo) bool { return s.rotated && s.empty }), there, err
		}
	}
}

// countUnknown counts a gap if the last file has no name any more and missing events may
// have hidden further rotations.
func (r *Reader) countUnknown(there bool) {
	if !there && r.watch.isBlind() {
		r.log.Warn("the last file was deleted, and other files may have been created and deleted since: lines may be lost")
		r.gaps.Add(1)
	}
	r.watch.missed = false
}

// again, as a waiting time, means to look again at once.
const again = -1

// read returns the next lines of the open file, if any. It closes the file if the file was
// overwritten and there is no copy to continue in.
func (r *Reader) read(now time.Time) (logs.Chunk, error) {
	for {
		if chunk := r.take(); len(chunk.Text) > 0 {
			return chunk, nil
		}
		n, intact, err := r.open.fill()
		switch {
		case err != nil:
			err = fmt.Errorf("reading %s: %w", r.open.file.Name(), err)
			r.leave(false) // a file of an unreachable file server must be opened again
			return logs.Chunk{}, err
		case !intact:
			if chunk, err := r.truncated(now); err != nil || len(chunk.Text) > 0 || r.open.file == nil {
				return chunk, err
			}
		case n == 0:
			return logs.Chunk{}, nil
		default:
			r.open.grew = now
			if follows, err := r.follows(); err != nil || !follows {
				r.leave(true)
				return logs.Chunk{}, err
			}
			r.after = nil
		}
	}
}

// follows says whether the file, from which something was read for the first time, is the
// right successor. It may have been copied and truncated before this read; then the copy
// must be read first.
func (r *Reader) follows() (bool, error) {
	if r.after == nil {
		return true, nil
	}
	next, _, err := r.next(*r.after)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // it was deleted meanwhile
	}
	return err == nil && (!next[0].rotated || next[0].is(r.open.position())), err
}

// take returns the whole lines of the pending bytes.
func (r *Reader) take() logs.Chunk {
	chunk, isCut := r.open.take(r.longest)
	if isCut {
		r.longLines.Add(1)
	}
	chunk.More = len(chunk.Text) > 0 && (chunk.More || !r.isLast())
	return chunk
}

// isLast says whether the open file is the file at the path, so that no file follows it.
func (r *Reader) isLast() bool {
	var stat unix.Stat_t
	return unix.Stat(r.path, &stat) == nil && stat.Dev == r.open.stat.Dev && stat.Ino == r.open.stat.Ino
}

// goOn opens a file at a position. If the file does not match the position any more, goOn
// closes it, and the reader searches for the position again.
func (r *Reader) goOn(file *os.File, at filePosition, now time.Time) error {
	if err := r.adopt(file, at.Offset, now); err != nil {
		return err
	}
	r.open.inLine = at.InLine
	r.open.earlier = at.Earlier
	if !at.isOpenAs(file) {
		r.open.written = at.Written
	}
	if here := r.open.position(); here.Head != at.Head || here.Tail != at.Tail {
		r.from, r.done = &at, false
		return r.open.close()
	}
	if !r.isLast() {
		_, _, err := r.next(r.open.position()) // registers the following files, so that their deletion is noticed
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// begin opens a file at its start. The file follows the position after, if given.
func (r *Reader) begin(file *os.File, after *filePosition, now time.Time) error {
	err := r.adopt(file, 0, now)
	if err != nil {
		return err
	}
	delete(r.watch.unread.files, filepath.Base(file.Name()))
	if r.after = after; after != nil {
		r.open.earlier = after.followed()
	}
	return nil
}

// adopt moves the reader to an offset of another file. If that fails, the reader keeps its
// position.
func (r *Reader) adopt(file *os.File, offset int64, now time.Time) error {
	if r.open.file != nil {
		r.leave(r.done)
	}
	if err := r.open.begin(file, offset, now); err != nil {
		return errors.Join(fmt.Errorf("reading %s: %w", file.Name(), err), r.open.close())
	}
	r.from, r.after, r.done = nil, nil, false
	return nil
}

// leave closes the open file and keeps its position.
func (r *Reader) leave(done bool) {
	here := r.open.position()
	r.from, r.done = &here, done
	if r.after != nil { // nothing was read from the file
		r.from, r.done = r.after, true
	}
	if err := r.open.close(); err != nil {
		r.log.Warn("cannot close the file", "err", err)
	}
}

// truncated continues in a copy of the truncated file. If there is none, it counts a gap.
func (r *Reader) truncated(now time.Time) (logs.Chunk, error) {
	file, err := find(r.path, r.open.positionAt(r.open.end))
	if err != nil {
		return logs.Chunk{}, err
	}
	if file != nil {
		r.log.Info("the file was truncated: continuing in its copy", "copy", file.Name(), "offset", r.open.offset)
		if r.open.hasLines() {
			r.countDeleted(r.open.position())
		}
		return logs.Chunk{}, r.goOn(file, r.open.position(), now)
	}
	r.log.Warn("the file was truncated and has no copy: continuing at its start, lines may be lost", "offset", r.open.offset)
	r.gaps.Add(1)
	chunk := r.open.flush()
	r.leave(true)
	return chunk, nil
}

// countDeleted counts a gap if the file of a position has no name any more, and the reader
// continues in a copy of it. The file was truncated after the copy, so its newer lines are
// in no copy.
func (r *Reader) countDeleted(original filePosition) {
	if _, there, _ := r.next(original); !there {
		r.log.Warn("the truncated file was deleted, its newer lines may be lost")
		r.gaps.Add(1)
	}
}

// resume opens the next file to read, at its position. If no file is available yet, it
// returns nil and leaves no file open.
func (r *Reader) resume(now time.Time) error {
	if r.from == nil {
		file, err := openRegular(r.path)
		if err != nil {
			return r.away(now, err)
		}
		return r.begin(file, nil, now)
	}
	if !r.done {
		file, err := find(r.path, *r.from)
		if err != nil {
			return err
		}
		if file != nil {
			if !r.from.isOpenAs(file) {
				r.countDeleted(*r.from)
			}
			return r.goOn(file, *r.from, now)
		}
	}
	followers, there, err := r.next(*r.from)
	if err != nil {
		return r.away(now, err)
	}
	next := followers[0]
	r.absent, r.lastError = time.Time{}, ""
	if next.size == 0 {
		return nil // while it is empty, the position in the last file identifies more
	}
	file, err := next.open()
	if errors.Is(err, errOther) {
		return nil // an event announces the new file
	}
	if err != nil {
		return r.away(now, err)
	}
	if r.done {
		r.countUnknown(there)
	} else {
		r.log.Warn("the last file was deleted or overwritten, lines may be lost", "next", next.path)
		r.gaps.Add(1)
	}
	return r.begin(file, r.from, now)
}

// away turns a missing file into the error of Next.
func (r *Reader) away(now time.Time, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if r.absent.IsZero() {
		r.absent = now
	}
	return fmt.Errorf("reading %s: %w", r.path, logs.ErrNotExist)
}

// moveOn decides at the end of a file whether to wait or to continue with the next file.
func (r *Reader) moveOn(now time.Time) (logs.Chunk, time.Duration, error) {
	none := logs.Chunk{}
	current, err := statFile(r.path)
	here := r.open.position()
	switch {
	case err == nil && current.is(here):
		r.absent, r.lastError = time.Time{}, ""
		r.watch.unread.expect(nil)
		r.watch.missed = false
		return none, 0, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return none, 0, err
	case err == nil:
		r.absent, r.lastError = time.Time{}, ""
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
	if still := r.open.quietFor(now); still < r.delays.quiet {
		return none, r.delays.quiet - still, nil
	}
	// The next file has lines, so all earlier lines are in this file now.
	last := r.open.file
	if chunk, err := r.read(now); err != nil || len(chunk.Text) > 0 {
		return chunk, 0, err
	}
	if r.open.file != last {
		return none, again, nil // truncated just now
	}
	if chunk := r.open.flush(); len(chunk.Text) > 0 {
		return chunk, 0, nil
	}
	file, err := followers[0].open()
	if errors.Is(err, errOther) || errors.Is(err, fs.ErrNotExist) {
		return none, again, nil // rotated again just now
	}
	if err != nil {
		return none, 0, err
	}
	r.countUnknown(there)
	r.log.Info("the file was rotated: continuing with the next file", "next", file.Name())
	return none, again, r.begin(file, &here, now)
}

// hold waits until the next file has lines. Meanwhile it keeps the last file open, because
// its writer may still use it. It closes a deleted file after a while to free the disk
// space.
func (r *Reader) hold(now time.Time, missing bool) (logs.Chunk, time.Duration, error) {
	none := logs.Chunk{}
	var err error
	var wait time.Duration
	if missing {
		if gone := now.Sub(r.absent); gone < r.delays.linger {
			wait = r.delays.linger - gone
		} else {
			err = r.away(now, fs.ErrNotExist)
		}
	}
	if r.open.stat.Nlink > 0 {
		return none, wait, err
	}
	if still := r.open.quietFor(now); still < r.delays.linger {
		return none, r.delays.linger - still, nil
	}
	if chunk := r.open.flush(); len(chunk.Text) > 0 {
		return chunk, 0, nil
	}
	r.leave(true)
	return none, again, nil
}
