package logs

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// Chunk holds whole records of a log, in the order in which they were written.
type Chunk struct {
	// Text holds the records, each terminated by a newline. The reader reuses it in the next
	// call of Next.
	Text []byte
	// Records holds the end and the metadata of each record. If it is nil, each line is a
	// record, and the log's translator finds its timestamp and message.
	Records []Record
	// First is the offset of Text's first byte in its file, for lines without Records.
	// Together with its text it identifies a line.
	First uint64
	// Next is the position after this chunk. It stays valid after a restart.
	Next Position
	// Lost is the number of records known to be lost before this chunk.
	Lost uint64
	// More says that the log may already have more to read. If it is false, the reader has
	// returned everything that was written before it made the chunk.
	More bool
}

// Record is an entry of a log that stores metadata besides the text.
type Record struct {
	End      int // offset in the text of the chunk, after the record's newline
	Time     time.Time
	Number   uint64 // sequence number in its log
	Priority int8   // syslog priority, 0 (emergency) to 7 (debug), or NoPriority
	Facility int16  // syslog facility, 0 for the kernel, or NoPriority
}

// NoPriority marks a record without a priority or without a facility.
const NoPriority = -1

// Kernel is the syslog facility of the kernel.
const Kernel = 0

// Position is a place in a log, in a format that only its reader knows. An empty Position
// means none.
type Position = json.RawMessage

// Reader follows a log.
type Reader interface {
	// Next waits for more of the log. It returns what is available and does not wait for a
	// full chunk. An error other than the context's means that the log cannot be read now.
	// The reader then keeps its position, and the caller may call Next again at once: the
	// reader itself waits where waiting is needed.
	Next(ctx context.Context) (Chunk, error)
	Close() error
}

// ErrNotExist says that the log does not exist now. A reader returns it once and then
// waits until the log appears.
var ErrNotExist = errors.New("log does not exist")

// Translator finds the timestamp and the message in a line without its newline. It returns
// ok false if the line does not have its format. The message is a slice of the line.
type Translator interface {
	Translate(line []byte) (at time.Time, message []byte, ok bool)
}
