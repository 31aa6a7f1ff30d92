package journal

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

const (
	// chunkSize is the approximate size of a chunk.
	chunkSize = 64 << 10
	// maxMessage limits the length of a message. Longer messages are truncated.
	maxMessage = 64 << 10

	noPriority = logs.NoPriority
)

// Config configures a reader.
type Config struct {
	// Path is a directory of journald, a machine's subdirectory, or a file. If it is empty,
	// the reader uses /run/log/journal and /var/log/journal.
	Path string
	// Identifier selects entries by SYSLOG_IDENTIFIER. Empty selects all.
	Identifier string
	// Unit selects entries by _SYSTEMD_UNIT, for example kubelet.service. Empty selects all.
	// Only one of Identifier and Unit may be set.
	Unit string
	// From is the position of an earlier reader. The reader ignores it if it is empty or
	// invalid.
	From logs.Position
	// Since is the earliest time, on the wall clock, of entries to return.
	Since time.Time
	// Log receives files that cannot be read. It may be nil.
	Log *slog.Logger
}

// Validate returns an error if the configuration is invalid.
func (c Config) Validate() error {
	if c.Path != "" && !filepath.IsAbs(c.Path) {
		return fmt.Errorf("the path of the journal is %q: use an absolute path, for example %s", c.Path, persistentDir)
	}
	if c.Identifier != "" && c.Unit != "" {
		return fmt.Errorf("both the identifier %s and the unit %s are set for the journal: set only one of them", c.Identifier, c.Unit)
	}
	return nil
}

// wanted returns the data that entries must contain.
func (c Config) wanted() string {
	switch {
	case c.Identifier != "":
		return "SYSLOG_IDENTIFIER=" + c.Identifier
	case c.Unit != "":
		return "_SYSTEMD_UNIT=" + c.Unit
	}
	return ""
}

// Reader follows the journal. It is a [logs.Reader].
type Reader struct {
	wanted   string // see openFile
	since    uint64 // microseconds since 1970
	log      *slog.Logger
	roots    []root
	notifier *notifier
	unpacker unpacker

	scanned  scanResult
	sources  []*source
	ended    map[string]ended // files that were read to their end, by path
	progress progress
	copies   copies

	chunk         chunk
	positionStale bool   // the last returned position is outdated
	lastError     string // the last returned error
}

var _ logs.Reader = (*Reader)(nil)

// source is a file that may have more entries.
type source struct {
	*file
	journalFile
	open   *os.File
	logged bool // whether a read error was logged
	// refreshErr is the error of the last refresh.
	refreshErr error
	// final says that the file did not grow any more at the last scan.
	final bool
}

// ended is a file that was read to its end.
type ended struct {
	inode  inode
	header header
}

// Open starts to read the journal. The journal need not exist yet.
//
// Open ignores an invalid position. If a file was deleted between two readers, its unread
// entries are counted as lost by their sequence numbers. This includes entries that the
// filter would not select.
func Open(config Config) (*Reader, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	r := &Reader{
		wanted:  config.wanted(),
		since:   micros(config.Since),
		log:     config.Log,
		roots:   rootsOf(config.Path),
		scanned: scanResult{stale: true},
		ended:   map[string]ended{},
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	from, err := parsePosition(config.From)
	if err != nil {
		r.log.Warn("ignoring an invalid position in the journal: reading from the start", "err", err)
	}
	r.progress, r.positionStale = newProgress(from), from == nil
	if from != nil {
		r.copies.flushed = from.Flushed
	}
	if r.notifier, err = newNotifier(); err != nil {
		r.log.Warn("inotify is not available for the journal: polling for changes", "err", err)
	}
	return r, nil
}

func micros(t time.Time) uint64 {
	if t.IsZero() || t.UnixMicro() < 0 {
		return 0
	}
	return uint64(t.UnixMicro())
}

// Close closes the reader.
func (r *Reader) Close() error {
	for _, s := range r.sources {
		_ = s.open.Close()
	}
	r.sources = nil
	return r.notifier.close()
}

// Cut returns the number of truncated messages.
func (r *Reader) Cut() uint64 { return r.chunk.cut }

// Next waits for more entries. A chunk may contain only a position: the first one, after
// old entries were skipped, and one after a file that was read to its end.
//
// Next returns an error when no part of the journal can be read, and returns each error
// once. While a part is readable, it continues with that part and logs the rest.
func (r *Reader) Next(ctx context.Context) (logs.Chunk, error) {
	for {
		if err := ctx.Err(); err != nil {
			return logs.Chunk{}, err
		}
		if r.scanned.stale {
			r.scan()
		}
		r.refresh()
		r.take()
		r.settle()
		readErr := r.unreadable()
		if len(r.chunk.records) > 0 || r.chunk.lost > 0 || r.positionStale && readErr == nil {
			return r.release()
		}
		if r.isNews(readErr) {
			return logs.Chunk{}, readErr
		}
		if !r.scanned.stale {
			r.scanned.stale = r.notifier.wait(ctx) || r.scanned.unopened
		}
	}
}

// unreadable returns why no part of the journal can be read, nil if a part can.
func (r *Reader) unreadable() error {
	readErr := r.scanned.err
	for _, s := range r.sources {
		if s.refreshErr == nil || s.isFinal() { // a file that does not grow has a successor
			return nil
		}
		readErr = fmt.Errorf("reading the journal: %s: %w", s.path, s.refreshErr)
	}
	return readErr
}

// isNews says whether an error differs from the last one.
func (r *Reader) isNews(readErr error) bool {
	before := r.lastError
	r.lastError = ""
	if readErr != nil {
		r.lastError = readErr.Error()
	}
	return r.lastError != "" && r.lastError != before
}

// release returns the chunk and the position after it.
func (r *Reader) release() (logs.Chunk, error) {
	next, err := r.position()
	if err != nil {
		return logs.Chunk{}, fmt.Errorf("encoding the position in the journal: %w", err)
	}
	c := logs.Chunk{Text: r.chunk.text, Records: r.chunk.records, Next: next, Lost: r.chunk.lost, More: r.chunk.full || r.scanned.stale}
	r.positionStale, r.chunk.lost = false, 0
	return c, nil
}

// isFinal says whether the file does not grow any more.
func (s *source) isFinal() bool { return s.header.archived || isRenamed(s.path) }

// isGone says whether the file was deleted.
func (s *source) isGone() bool {
	info, err := s.open.Stat()
	return err == nil && hasNoName(info)
}

// end closes a file that was read to its end.
func (r *Reader) end(s *source) {
	// After a deleted file is closed, a new file may get its inode.
	if !s.isGone() {
		r.ended[s.path] = ended{inode: s.inode, header: s.header}
	}
	_ = s.open.Close()
	r.progress.end(&s.header)
}

// refresh reads what was added to the files.
func (r *Reader) refresh() {
	for _, s := range r.sources {
		if s.refreshErr = s.refresh(); s.refreshErr != nil {
			s.miss(0, s.refreshErr)
		}
	}
}

// take builds a chunk of the available entries.
func (r *Reader) take() {
	r.chunk.reset()
	for len(r.chunk.text) < chunkSize {
		s := r.earliest()
		if s == nil {
			r.chunk.full = false
			return
		}
		s.ready = false
		s.taken = s.next.number
		if r.copies.has(s) {
			continue
		}
		r.copies.note(s)
		if err := r.chunk.add(s); err != nil {
			s.miss(1, err)
		}
	}
}

// earliest returns the file whose next entry was written first.
func (r *Reader) earliest() *source {
	var first *source
	for _, s := range r.sources {
		if s.peek(r.since) && (first == nil || s.next.before(&first.next)) {
			first = s
		}
	}
	return first
}

// settle counts unreadable entries, and closes files that have no more entries.
func (r *Reader) settle() {
	blind := r.unreadable() != nil // then Next returns the error
	left := r.sources[:0]
	for _, s := range r.sources {
		if s.fault != nil {
			r.chunk.lost += s.lost
			if !s.logged && !blind {
				s.logged = true
				r.log.Warn("cannot read a part of a journal file", "path", s.path, "lost", s.lost, "err", s.fault)
			}
			s.lost, s.fault = 0, nil
		}
		isRead := !s.ready && s.cursor.index >= s.list.length
		if isRead && s.final {
			r.end(s)
			r.positionStale = true
			continue
		}
		r.scanned.stale = r.scanned.stale || isRead && s.isFinal()
		left = append(left, s)
	}
	clear(r.sources[len(left):])
	r.sources = left
}
