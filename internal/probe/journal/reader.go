package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

const (
	// chunkSize is the approximate size of a chunk.
	chunkSize = 64 << 10
	// maxMessage limits the length of a message. Longer messages are truncated.
	maxMessage = 64 << 10
	// pollInterval is how often the reader looks without an event. Files may appear in
	// unwatched directories, and some systems have no inotify. Journald signals its writes up
	// to half a second late, so polling more often would cost more than it gains.
	pollInterval = 2 * time.Second

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
	wanted       string // see openFile
	since        uint64 // microseconds since 1970
	log          *slog.Logger
	roots        []root
	notifier     *notifier
	pollInterval time.Duration
	unpacker     unpacker

	sources []*source
	done    map[id]uint64       // by sequence: the last number in files that were read to their end
	ended   map[string]ended    // these files, by path
	faults  map[string]bool     // unreadable paths, and whether they were logged
	resume  map[id]filePosition // files that an earlier reader has not read to their end
	seen    uint64              // the last sequence number of that reader
	flushed *moment             // the last entry that was read in /run
	last    entry               // the last entry that was returned
	lastOf  id                  // its file

	text          []byte
	records       []logs.Record
	offsets       []uint64
	lost          uint64
	full          bool // the chunk is full, so there may be more
	cut           uint64
	namesChanged  bool   // files may have been created, deleted or renamed
	unopened      bool   // a file could not be opened, for example because it has no header yet
	positionStale bool   // the last returned position is outdated
	scanErr       error  // why the last scan found nothing to read
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
		wanted:        config.wanted(),
		since:         micros(config.Since),
		log:           config.Log,
		roots:         rootsOf(config.Path),
		done:          map[id]uint64{},
		ended:         map[string]ended{},
		pollInterval:  pollInterval,
		namesChanged:  true,
		positionStale: true,
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	from, err := parsePosition(config.From)
	if err != nil {
		r.log.Warn("ignoring an invalid position in the journal: reading from the start", "err", err)
	}
	if from != nil {
		r.positionStale = false
		r.flushed, r.seen = from.Flushed, from.seen()
		r.resume = map[id]filePosition{}
		for _, p := range from.Files {
			r.resume[p.File] = p
		}
		for sequence, number := range from.Done {
			r.done[sequence] = number
		}
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
func (r *Reader) Cut() uint64 { return r.cut }

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
		if r.namesChanged {
			r.scan()
		}
		r.refresh()
		r.take()
		r.settle()
		readErr := r.unreadable()
		if len(r.records) > 0 || r.lost > 0 || r.positionStale && readErr == nil {
			return r.chunk()
		}
		if r.isNews(readErr) {
			return logs.Chunk{}, readErr
		}
		if !r.namesChanged {
			r.namesChanged = r.notifier.wait(ctx, r.pollInterval) || r.unopened
		}
	}
}

// unreadable returns why no part of the journal can be read, nil if a part can.
func (r *Reader) unreadable() error {
	readErr := r.scanErr
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

func (r *Reader) chunk() (logs.Chunk, error) {
	next, err := r.position()
	if err != nil {
		return logs.Chunk{}, fmt.Errorf("encoding the position in the journal: %w", err)
	}
	c := logs.Chunk{Text: r.text, Records: r.records, Next: next, Lost: r.lost, More: r.full || r.namesChanged}
	r.positionStale, r.lost = false, 0
	return c, nil
}

// scan lists the files of the journal.
//
// A file is final only if it was final before the files were listed. Then no unknown file
// contains entries from before its end.
func (r *Reader) scan() {
	for _, s := range r.sources {
		s.final = s.isFinal() || s.isGone()
	}
	files, unlisted := r.list()
	old, unread := r.openNew(files)
	for _, s := range old {
		r.end(s)
	}
	faults := slices.Concat(unlisted, unread)
	r.scanErr = r.nothingToRead(files, faults)
	r.logFaults(faults)
	if len(unlisted) == 0 && len(files) > 0 {
		r.forget(files)
	}
	r.namesChanged = false
	r.unopened = r.unopened || len(faults) > 0
}

// fault is a directory or file that cannot be read.
type fault struct {
	journalFile
	isDir bool
	err   error
}

func (f fault) Error() string {
	if broken, ok := errors.AsType[*fs.PathError](f.err); ok {
		return broken.Path + ": " + broken.Err.Error()
	}
	return f.path + ": " + f.err.Error()
}

func (f fault) Unwrap() error { return f.err }

// nothingToRead returns why there is nothing to read after all files were opened. An unreadable
// file that does not grow any more only matters if there is no other file.
func (r *Reader) nothingToRead(files []journalFile, faults []fault) error {
	if len(r.sources) > 0 {
		return nil
	}
	isKnown := func(f journalFile) bool { return r.ended[f.path].inode == f.inode }
	for _, f := range faults {
		if f.isDir || !isRenamed(f.path) || !slices.ContainsFunc(files, isKnown) {
			return fmt.Errorf("reading the journal: %w", f)
		}
	}
	if len(files) == 0 {
		return fmt.Errorf("looking for the journal in %s: %w", r.where(), logs.ErrNotExist)
	}
	return nil
}

// logFaults logs each unreadable path once, unless Next returns an error because nothing
// is readable.
func (r *Reader) logFaults(faults []fault) {
	were := r.faults
	r.faults = make(map[string]bool, len(faults))
	for _, f := range faults {
		told := were[f.path]
		if r.scanErr == nil && !told {
			r.log.Warn("cannot read a part of the journal", "path", f.path, "err", f.err)
			told = true
		}
		r.faults[f.path] = told
	}
}

// list returns the existing files, and the directories that cannot be listed.
func (r *Reader) list() (files []journalFile, unlisted []fault) {
	for _, root := range r.roots {
		list, folders, err := root.list()
		files = append(files, list...)
		for _, folder := range folders {
			// A directory may be deleted meanwhile, and an unwatched directory is polled.
			_ = r.notifier.add(folder)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			unlisted = append(unlisted, fault{journalFile: journalFile{path: root.path}, isDir: true, err: err})
		}
	}
	return files, unlisted
}

func (r *Reader) where() string {
	paths := make([]string, len(r.roots))
	for i, root := range r.roots {
		paths[i] = root.path
	}
	return strings.Join(paths, " and ")
}

// openNew opens new files. It returns those that are too old to be read, and those that
// cannot be opened.
func (r *Reader) openNew(files []journalFile) (old []*source, unread []fault) {
	r.unopened = false
	for _, f := range files {
		if r.ended[f.path].inode == f.inode || r.follows(f) {
			continue
		}
		s, err := r.open(f)
		switch {
		case errors.Is(err, errNotYet) || errors.Is(err, fs.ErrNotExist):
			r.unopened = true
		case err != nil:
			unread = append(unread, fault{journalFile: f, err: err})
		case r.isDone(s) || s.isFinal() && s.header.tailTime < r.since:
			old = append(old, s)
		default:
			r.begin(s)
		}
	}
	return old, unread
}

// follows says whether a file is already being read, and updates its path.
func (r *Reader) follows(f journalFile) bool {
	for _, s := range r.sources {
		if s.inode == f.inode {
			s.path = f.path // it may have been renamed; it is open, so its inode was not reused
			return true
		}
	}
	return false
}

// open opens a file.
func (r *Reader) open(f journalFile) (*source, error) {
	disk, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	s := &source{journalFile: f, open: disk}
	info, err := disk.Stat()
	if err == nil {
		s.inode = inodeOf(info) // the file may have been replaced since it was listed
		s.file, err = openFile(disk, r.wanted, &r.unpacker)
	}
	if err != nil {
		_ = disk.Close()
		return nil, err
	}
	return s, nil
}

// isDone says whether a file was read to its end before. Sequence numbers only grow, so a
// file that begins before the end of a done file is not newer. Files that were not done
// are listed in resume.
func (r *Reader) isDone(s *source) bool {
	_, isResumed := r.resume[s.header.file]
	last, isThere := r.done[s.header.sequence]
	return !isResumed && isThere && s.header.entries > 0 && s.header.head <= last
}

// begin starts to read a file, after the last entry that an earlier reader has returned.
func (r *Reader) begin(s *source) {
	if err := s.refresh(); err != nil {
		s.miss(0, err)
	}
	s.begin(r.resume[s.header.file].Taken, r.since)
	delete(r.resume, s.header.file)
	r.sources = append(r.sources, s)
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
	delete(r.resume, s.header.file)
	r.done[s.header.sequence] = max(r.done[s.header.sequence], s.header.tail)
}

// forget removes the state of deleted files.
func (r *Reader) forget(files []journalFile) {
	there := make(map[string]bool, len(files))
	for _, f := range files {
		there[f.path] = true
	}
	maps.DeleteFunc(r.ended, func(path string, _ ended) bool { return !there[path] })
	if len(r.faults) > 0 { // a file that cannot be opened now may only seem to be deleted
		return
	}
	r.countDeleted()
	sequences := map[id]bool{}
	for _, h := range r.headers() {
		sequences[h.sequence] = true
	}
	maps.DeleteFunc(r.done, func(sequence id, _ uint64) bool { return !sequences[sequence] })
}

// headers returns the headers of all existing files.
func (r *Reader) headers() []header {
	list := make([]header, 0, len(r.sources)+len(r.ended))
	for _, s := range r.sources {
		list = append(list, s.header)
	}
	for _, e := range r.ended {
		list = append(list, e.header)
	}
	return list
}

// countDeleted counts the unread entries of files that were deleted between two readers.
func (r *Reader) countDeleted() {
	if len(r.resume) == 0 {
		return
	}
	lost := gap(r.seen, r.resume, r.headers())
	r.lost += lost
	r.log.Info("journal files were deleted before they were read to their end", "files", len(r.resume), "lost", lost)
	clear(r.resume)
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
	r.text, r.records, r.full = r.text[:0], r.records[:0], true
	for len(r.text) < chunkSize {
		s := r.earliest()
		if s == nil {
			r.full = false
			return
		}
		s.ready = false
		s.taken = s.next.number
		if r.isKnown(s) {
			continue
		}
		r.last, r.lastOf = s.next, s.header.file
		if s.volatile {
			r.flushed = &moment{Boot: s.next.boot, Monotonic: s.next.monotonic}
		}
		if err := r.addEntry(s); err != nil {
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

// isKnown says whether the next entry was already returned from another file. Journald
// copies entries from /run to /var when /var becomes available.
func (r *Reader) isKnown(s *source) bool {
	if r.lastOf != s.header.file && r.last.isCopyOf(&s.next) {
		return true
	}
	return !s.volatile && r.flushed != nil && r.flushed.Boot == s.next.boot && s.next.monotonic <= r.flushed.Monotonic
}

// addEntry adds the next entry of a file to the chunk.
func (r *Reader) addEntry(s *source) error {
	var values fieldValues
	var err error
	values, r.offsets, err = s.fields(&s.next, r.offsets)
	if err != nil || values.message == 0 {
		return err
	}
	p, err := s.payload(values.message)
	if err != nil {
		return err
	}
	begin := len(r.text)
	text, cut, err := p.first(r.text, len(messagePrefix)+maxMessage)
	if err != nil {
		return err
	}
	if cut {
		r.cut++
	}
	message := bytes.TrimSpace(text[begin+len(messagePrefix):])
	r.text = text[:begin+copy(text[begin:], message)]
	r.text = append(r.text, '\n')
	if values.facility == logs.Kernel && !values.kernel {
		values.facility = noPriority // any process can set SYSLOG_FACILITY; only journald sets _TRANSPORT
	}
	r.records = append(r.records, logs.Record{
		End:      len(r.text),
		Time:     time.UnixMicro(int64(s.next.realtime)),
		Number:   s.next.number,
		Priority: int8(values.priority),
		Facility: values.facility,
	})
	return nil
}

// settle counts unreadable entries, and closes files that have no more entries.
func (r *Reader) settle() {
	blind := r.unreadable() != nil // then Next returns the error
	left := r.sources[:0]
	for _, s := range r.sources {
		if s.fault != nil {
			r.lost += s.lost
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
		r.namesChanged = r.namesChanged || isRead && s.isFinal()
		left = append(left, s)
	}
	clear(r.sources[len(left):])
	r.sources = left
}
