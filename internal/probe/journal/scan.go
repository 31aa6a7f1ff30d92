package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// scanResult is what the last scan found.
type scanResult struct {
	stale    bool            // files may have been created, deleted or renamed since
	unopened bool            // a file could not be opened, for example because it has no header yet
	faults   map[string]bool // unreadable paths, and whether they were logged
	err      error           // why there is nothing to read
}

// logFaults logs each unreadable path once, unless Next returns an error because nothing
// is readable.
func (s *scanResult) logFaults(log *slog.Logger, faults []fault) {
	were := s.faults
	s.faults = make(map[string]bool, len(faults))
	for _, f := range faults {
		told := were[f.path]
		if s.err == nil && !told {
			log.Warn("cannot read a part of the journal", "path", f.path, "err", f.err)
			told = true
		}
		s.faults[f.path] = told
	}
}

// scan lists the files of the journal. A list that is made while journald renames a file may
// lack the file, so scan lists twice before a file of an earlier reader counts as deleted.
func (r *Reader) scan() {
	if r.scanOnce(false) {
		r.scanOnce(true)
	}
}

// scanOnce lists the files once, and returns whether a file of an earlier reader is missing. It
// forgets missing files only if it is told to.
//
// A file is final only if it was final before the files were listed. Then no unknown file
// contains entries from before its end.
func (r *Reader) scanOnce(forgetMissing bool) (missing bool) {
	for _, s := range r.sources {
		s.final = s.isFinal() || s.isGone()
	}
	files, unlisted := r.list()
	old, unread := r.openNew(files)
	for _, s := range old {
		r.end(s)
	}
	faults := slices.Concat(unlisted, unread)
	r.scanned.err = r.nothingToRead(files, faults)
	r.scanned.logFaults(r.log, faults)
	missing = len(r.progress.resume) > 0
	if len(unlisted) == 0 && len(files) > 0 && (forgetMissing || !missing) {
		r.forget(files)
	}
	r.scanned.stale = false
	r.scanned.unopened = r.scanned.unopened || len(faults) > 0
	return missing
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
	r.scanned.unopened = false
	for _, f := range files {
		if r.ended[f.path].inode == f.inode || r.follows(f) {
			continue
		}
		s, err := r.open(f)
		switch {
		case errors.Is(err, errNotYet) || errors.Is(err, fs.ErrNotExist):
			r.scanned.unopened = true
		case err != nil:
			unread = append(unread, fault{journalFile: f, err: err})
		case r.progress.isDone(&s.header) || s.isFinal() && s.header.tailTime < r.since:
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

// begin starts to read a file, after the last entry that an earlier reader has returned.
func (r *Reader) begin(s *source) {
	if err := s.refresh(); err != nil {
		s.miss(0, err)
	}
	s.begin(r.progress.begin(&s.header), r.since)
	r.sources = append(r.sources, s)
}

// forget removes the state of deleted files.
func (r *Reader) forget(files []journalFile) {
	there := make(map[string]bool, len(files))
	for _, f := range files {
		there[f.path] = true
	}
	maps.DeleteFunc(r.ended, func(path string, _ ended) bool { return !there[path] })
	if len(r.scanned.faults) > 0 { // a file that cannot be opened now may only seem to be deleted
		return
	}
	if files, lost := r.progress.forget(r.headers()); files > 0 {
		r.chunk.lost += lost
		r.log.Info("journal files were deleted before they were read to their end", "files", files, "lost", lost)
	}
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
