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
	// chunkSize is about how much text is handed out at once.
	chunkSize = 64 << 10
	// maxMessage bounds the message of an entry. What is longer is cut.
	maxMessage = 64 << 10
	// lookEvery is how often one looks without having heard anything: files may come where
	// nobody could listen, and some systems ring no bell. To look more often than journald
	// tells of what it has written, up to half a second later, costs more than it gives.
	lookEvery = 2 * time.Second

	unsaid = logs.NoPriority
)

// Config says what is read, and from where on.
type Config struct {
	// Path of a folder of journald, of a machine's folder below it, or of one file. Empty
	// means those in /run and in /var.
	Path string
	// Identifier that entries must have (SYSLOG_IDENTIFIER). Empty means all.
	Identifier string
	// Unit of systemd whose processes must have written them (_SYSTEMD_UNIT), such as
	// kubelet.service. Empty means all. There is one of both at most.
	Unit string
	// From is where somebody has stopped reading. Empty, or of no use, means nowhere.
	From logs.Position
	// Since is the earliest time that counts, by the clock on the wall.
	Since time.Time
	// Log is told of files that cannot be read. Nil means nobody is.
	Log *slog.Logger
}

// Validate says what is wrong.
func (c Config) Validate() error {
	if c.Path != "" && !filepath.IsAbs(c.Path) {
		return fmt.Errorf("the path of the journal is %q: name a folder from the root on, such as %s", c.Path, persistentFolder)
	}
	if c.Identifier != "" && c.Unit != "" {
		return fmt.Errorf("of the journal both the identifier %s and the unit %s are wanted: name one of them", c.Identifier, c.Unit)
	}
	return nil
}

// wanted is the datum that entries must have.
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
	wanted    string // see openFile
	since     uint64 // microseconds since 1970
	log       *slog.Logger
	roots     []root
	bell      *bell
	lookEvery time.Duration
	unpacker  unpacker

	sources []*source
	done    map[id]uint64    // by sequence: the last number of files that are read to their end
	ended   map[string]ended // those files, by their paths
	faults  map[string]bool  // paths that cannot be read, and whether that was told
	resume  map[id]place     // of the files at which somebody has stopped reading
	seen    uint64           // the last sequence number that was known then
	flushed *moment          // of the last entry that was read in /run
	last    entry            // that was handed out
	lastOf  id               // the file that it was in

	text    []byte
	records []logs.Record
	offsets []uint64
	lost    uint64
	full    bool // the chunk, so that there may be more
	cut     uint64
	moved   bool   // files may have come, gone or changed their names
	unmet   bool   // a file is there that could not be opened, such as one that is just made
	stale   bool   // the position that was handed out last is not worth keeping
	hidden  error  // why there was nothing to read when the folders were last listed
	told    string // the trouble that was told last
}

var _ logs.Reader = (*Reader)(nil)

// source is a file that may hold more.
type source struct {
	*file
	found
	open *os.File
	told bool // that a part of it cannot be read
	// unseen is why one could not see what was added to it, when it was last looked at.
	unseen error
	// final says that nothing was added any more when the folders were last listed.
	final bool
}

// ended is a file that was read to its end.
type ended struct {
	inode  inode
	header header
}

// Open begins to read the journal, which need not be there yet.
//
// A position that cannot be read counts as none. Entries that have gone with a file
// between two readers are counted as lost, by their sequence numbers: nobody knows any
// more whose they were.
func Open(config Config) (*Reader, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	r := &Reader{
		wanted:    config.wanted(),
		since:     micros(config.Since),
		log:       config.Log,
		roots:     rootsOf(config.Path),
		done:      map[id]uint64{},
		ended:     map[string]ended{},
		lookEvery: lookEvery,
		moved:     true,
		stale:     true,
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	from, err := parsePosition(config.From)
	if err != nil {
		r.log.Warn("position in the journal is of no use, beginning anew", "err", err)
	}
	if from != nil {
		r.stale = false
		r.flushed, r.seen = from.Flushed, from.seen()
		r.resume = map[id]place{}
		for _, p := range from.Files {
			r.resume[p.File] = p
		}
		for sequence, number := range from.Done {
			r.done[sequence] = number
		}
	}
	if r.bell, err = newBell(); err != nil {
		r.log.Warn("changes of the journal are not told, looking for them", "err", err)
	}
	return r, nil
}

func micros(t time.Time) uint64 {
	if t.IsZero() || t.UnixMicro() < 0 {
		return 0
	}
	return uint64(t.UnixMicro())
}

// Close ends the reading.
func (r *Reader) Close() error {
	for _, s := range r.sources {
		_ = s.open.Close()
	}
	r.sources = nil
	return r.bell.close()
}

// Cut is how many messages were longer than what is handed out of one.
func (r *Reader) Cut() uint64 { return r.cut }

// Next waits for more entries. A chunk may be empty but for its position: the first, when
// what is older has been passed over, and one after a file that was read to its end.
//
// It fails when nothing of the journal can be read, and says each reason once. While a
// part can be read, it goes on with that, and the log is told of the rest.
func (r *Reader) Next(ctx context.Context) (logs.Chunk, error) {
	for {
		if err := ctx.Err(); err != nil {
			return logs.Chunk{}, err
		}
		if r.moved {
			r.survey()
		}
		r.look()
		r.take()
		r.settle()
		trouble := r.trouble()
		if len(r.records) > 0 || r.lost > 0 || r.stale && trouble == nil {
			return r.chunk()
		}
		if r.isNews(trouble) {
			return logs.Chunk{}, trouble
		}
		if !r.moved {
			r.moved = r.bell.wait(ctx, r.lookEvery) || r.unmet
		}
	}
}

// trouble says why nothing of the journal can be read. Nil means that something can.
func (r *Reader) trouble() error {
	trouble := r.hidden
	for _, s := range r.sources {
		if s.unseen == nil || s.isFinal() { // one that brings no more has a successor
			return nil
		}
		trouble = fmt.Errorf("reading the journal: %s: %w", s.path, s.unseen)
	}
	return trouble
}

// isNews says whether a trouble is another than the one before.
func (r *Reader) isNews(trouble error) bool {
	before := r.told
	r.told = ""
	if trouble != nil {
		r.told = trouble.Error()
	}
	return r.told != "" && r.told != before
}

func (r *Reader) chunk() (logs.Chunk, error) {
	next, err := r.position()
	if err != nil {
		return logs.Chunk{}, fmt.Errorf("writing the position in the journal: %w", err)
	}
	c := logs.Chunk{Text: r.text, Records: r.records, Next: next, Lost: r.lost, More: r.full || r.moved}
	r.stale, r.lost = false, 0
	return c, nil
}

// survey finds out which files there are.
//
// A file is final only if it was so before the others were listed: then there is none
// that is older than its end and not known.
func (r *Reader) survey() {
	for _, s := range r.sources {
		s.final = s.isFinal() || s.isGone()
	}
	files, unlisted := r.list()
	old, unread := r.meet(files)
	for _, s := range old {
		r.end(s)
	}
	faults := slices.Concat(unlisted, unread)
	r.hidden = r.hides(files, faults)
	r.blame(faults)
	if len(unlisted) == 0 && len(files) > 0 {
		r.forget(files)
	}
	r.moved = false
	r.unmet = r.unmet || len(faults) > 0
}

// fault is a folder or a file that cannot be read.
type fault struct {
	found
	isFolder bool
	err      error
}

func (f fault) Error() string {
	if broken, ok := errors.AsType[*fs.PathError](f.err); ok {
		return broken.Path + ": " + broken.Err.Error()
	}
	return f.path + ": " + f.err.Error()
}

func (f fault) Unwrap() error { return f.err }

// hides says why there is nothing to read, after all files were met. A file to which
// nothing is added any more is missed only if there is no other.
func (r *Reader) hides(files []found, faults []fault) error {
	if len(r.sources) > 0 {
		return nil
	}
	isKnown := func(f found) bool { return r.ended[f.path].inode == f.inode }
	for _, f := range faults {
		if f.isFolder || !isPutAside(f.path) || !slices.ContainsFunc(files, isKnown) {
			return fmt.Errorf("reading the journal: %w", f)
		}
	}
	if len(files) == 0 {
		return fmt.Errorf("looking for the journal in %s: %w", r.where(), logs.ErrNotExist)
	}
	return nil
}

// blame remembers what cannot be read, and tells of it once, unless whoever asks is told
// that nothing can.
func (r *Reader) blame(faults []fault) {
	were := r.faults
	r.faults = make(map[string]bool, len(faults))
	for _, f := range faults {
		told := were[f.path]
		if r.hidden == nil && !told {
			r.log.Warn("a part of the journal cannot be read", "path", f.path, "err", f.err)
			told = true
		}
		r.faults[f.path] = told
	}
}

// list returns the files that there are, and the folders that cannot be listed.
func (r *Reader) list() (files []found, unlisted []fault) {
	for _, root := range r.roots {
		list, folders, err := root.list()
		files = append(files, list...)
		for _, folder := range folders {
			// A folder that goes meanwhile is not missed, and what cannot be listened to is
			// looked at by the clock.
			_ = r.bell.listen(folder)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			unlisted = append(unlisted, fault{found: found{path: root.path}, isFolder: true, err: err})
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

// meet opens the files that are not known yet. It returns those of them that are too
// old to be read, and those that cannot be.
func (r *Reader) meet(files []found) (old []*source, unread []fault) {
	r.unmet = false
	for _, f := range files {
		if r.ended[f.path].inode == f.inode || r.follows(f) {
			continue
		}
		s, err := r.open(f)
		switch {
		case errors.Is(err, errNotYet) || errors.Is(err, fs.ErrNotExist):
			r.unmet = true
		case err != nil:
			unread = append(unread, fault{found: f, err: err})
		case r.isDone(s) || s.isFinal() && s.header.tailTime < r.since:
			old = append(old, s)
		default:
			r.begin(s)
		}
	}
	return old, unread
}

// follows says whether a file is being read under that name.
func (r *Reader) follows(f found) bool {
	for _, s := range r.sources {
		if s.inode == f.inode {
			s.path = f.path // it may have been renamed; it is held open, so it is no other
			return true
		}
	}
	return false
}

// open opens a file.
func (r *Reader) open(f found) (*source, error) {
	disk, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	s := &source{found: f, open: disk}
	info, err := disk.Stat()
	if err == nil {
		s.inode = inodeOf(info) // the name may be another's since it was listed
		s.file, err = openFile(disk, r.wanted, &r.unpacker)
	}
	if err != nil {
		_ = disk.Close()
		return nil, err
	}
	return s, nil
}

// isDone says whether a file was read to its end before. Sequence numbers only grow, so
// a file that begins before the end of one that is done is none that came later; and
// those that were not done then are known by name.
func (r *Reader) isDone(s *source) bool {
	_, isResumed := r.resume[s.header.file]
	last, isThere := r.done[s.header.sequence]
	return !isResumed && isThere && s.header.entries > 0 && s.header.head <= last
}

// begin begins to read a file, where somebody has stopped reading it.
func (r *Reader) begin(s *source) {
	if err := s.look(); err != nil {
		s.miss(0, err)
	}
	s.begin(r.resume[s.header.file].Taken, r.since)
	delete(r.resume, s.header.file)
	r.sources = append(r.sources, s)
}

// isFinal says whether nothing is added to the file any more.
func (s *source) isFinal() bool { return s.header.archived || isPutAside(s.path) }

// isGone says whether the file has no name any more.
func (s *source) isGone() bool {
	info, err := s.open.Stat()
	return err == nil && hasNoName(info)
}

// end closes a file that is read to its end.
func (r *Reader) end(s *source) {
	// Once a file without a name is closed, its inode may be that of the next one.
	if !s.isGone() {
		r.ended[s.path] = ended{inode: s.inode, header: s.header}
	}
	_ = s.open.Close()
	delete(r.resume, s.header.file)
	r.done[s.header.sequence] = max(r.done[s.header.sequence], s.header.tail)
}

// forget drops what is known of files that are gone.
func (r *Reader) forget(files []found) {
	there := make(map[string]bool, len(files))
	for _, f := range files {
		there[f.path] = true
	}
	maps.DeleteFunc(r.ended, func(path string, _ ended) bool { return !there[path] })
	if len(r.faults) > 0 { // a file that cannot be opened now may be one of those that seem gone
		return
	}
	r.mourn()
	sequences := map[id]bool{}
	for _, h := range r.headers() {
		sequences[h.sequence] = true
	}
	maps.DeleteFunc(r.done, func(sequence id, _ uint64) bool { return !sequences[sequence] })
}

// headers returns those of all files that are there.
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

// mourn counts what has gone with the files at which somebody has stopped reading.
func (r *Reader) mourn() {
	if len(r.resume) == 0 {
		return
	}
	lost := gap(r.seen, r.resume, r.headers())
	r.lost += lost
	r.log.Info("journal files are gone that were being read", "files", len(r.resume), "lost", lost)
	clear(r.resume)
}

// look finds out what has been added to the files.
func (r *Reader) look() {
	for _, s := range r.sources {
		if s.unseen = s.look(); s.unseen != nil {
			s.miss(0, s.unseen)
		}
	}
}

// take makes a chunk of what there is.
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
		if err := r.tell(s); err != nil {
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

// isKnown says whether the next entry has been handed out from another file: journald
// copies what is in /run to /var when that is there.
func (r *Reader) isKnown(s *source) bool {
	if r.lastOf != s.header.file && r.last.isCopyOf(&s.next) {
		return true
	}
	return !s.volatile && r.flushed != nil && r.flushed.Boot == s.next.boot && s.next.monotonic <= r.flushed.Monotonic
}

// tell adds the next entry of a file to the chunk.
func (r *Reader) tell(s *source) error {
	var said said
	var err error
	said, r.offsets, err = s.fields(&s.next, r.offsets)
	if err != nil || said.message == 0 {
		return err
	}
	p, err := s.payload(said.message)
	if err != nil {
		return err
	}
	begin := len(r.text)
	text, cut, err := p.first(r.text, len(messageIs)+maxMessage)
	if err != nil {
		return err
	}
	if cut {
		r.cut++
	}
	message := bytes.TrimSpace(text[begin+len(messageIs):])
	r.text = text[:begin+copy(text[begin:], message)]
	r.text = append(r.text, '\n')
	if said.facility == logs.Kernel && !said.kernel {
		said.facility = unsaid // anybody can say so, but only journald says who it was
	}
	r.records = append(r.records, logs.Record{
		End:      len(r.text),
		Time:     time.UnixMicro(int64(s.next.realtime)),
		Number:   s.next.number,
		Priority: int8(said.priority),
		Facility: said.facility,
	})
	return nil
}

// settle counts what could not be read, and closes files that will bring no more.
func (r *Reader) settle() {
	blind := r.trouble() != nil // which whoever asks is told
	left := r.sources[:0]
	for _, s := range r.sources {
		if s.fault != nil {
			r.lost += s.lost
			if !s.told && !blind {
				s.told = true
				r.log.Warn("journal file cannot be read in part", "path", s.path, "lost", s.lost, "err", s.fault)
			}
			s.lost, s.fault = 0, nil
		}
		isRead := !s.ready && s.cursor.index >= s.list.length
		if isRead && s.final {
			r.end(s)
			r.stale = true
			continue
		}
		r.moved = r.moved || isRead && s.isFinal()
		left = append(left, s)
	}
	clear(r.sources[len(left):])
	r.sources = left
}
