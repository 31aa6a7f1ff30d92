package journal

import "io"

// file is a journal file and how far it was read.
type file struct {
	objectFile
	filter filter

	list   list
	cursor cursor
	next   entry  // the next entry, if ready
	ready  bool   // next is valid
	latest uint64 // offset of the last entry that was found

	// Entries up to this sequence number were read before a restart.
	from uint64
	// taken is the sequence number of the last entry that was skipped or returned.
	taken uint64
	lost  uint64 // unreadable entries that were not reported yet
	fault error  // why the last of them could not be read
}

// openFile reads only the header of a file. wanted is the data that entries must contain,
// for example SYSLOG_IDENTIFIER=kubelet. If it is empty, all entries match.
func openFile(disk io.ReaderAt, wanted string, unpacker *unpacker) (*file, error) {
	f := &file{objectFile: objectFile{window: window{disk: disk}, unpacker: unpacker}, filter: filter{wanted: []byte(wanted)}}
	return f, f.readHeader()
}

// refresh reads the current number of entries. Journald links an entry last, so all listed
// entries are complete.
func (f *file) refresh() error {
	f.window.forget()
	if err := f.readHeader(); err != nil {
		return err
	}
	entries, err := f.filter.entries(&f.objectFile)
	if err != nil {
		return err
	}
	f.list = entries
	return nil
}

// peek prepares the next entry that is not older than since and was not read before a
// restart. It returns false if there is none now. It counts unreadable entries.
func (f *file) peek(since uint64) bool {
	for !f.ready && f.cursor.index < f.list.length {
		at, err := f.find(f.cursor.index)
		if err != nil { // the rest of the list is unreachable
			f.miss(f.list.length-f.cursor.index, err)
			f.cursor.index = f.list.length
			break
		}
		f.cursor.index++
		e, err := f.entry(at)
		if err == nil && at <= f.latest { // entries are stored in the order of their arrival
			err = corrupted("an entry is listed after a later one", at)
		}
		if err != nil {
			f.miss(1, err)
			continue
		}
		f.latest = at
		switch {
		case e.number <= f.from:
		case e.realtime < since:
			f.taken = e.number
		default:
			f.next, f.ready = e, true
		}
	}
	return f.ready
}

func (f *file) miss(entries uint64, why error) {
	f.lost += entries
	f.fault = why
}

// begin skips entries that were read before a restart or are too old.
func (f *file) begin(from, since uint64) {
	f.from, f.taken = from, from
	last := f.seek(func(e *entry) bool { return e.number <= from || e.realtime < since })
	f.taken = max(f.taken, last.number)
}
