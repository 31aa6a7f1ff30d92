package logs

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// Chunk is some whole records of a log, in the order in which they were written.
type Chunk struct {
	// Text holds the records, each ended by a newline. It is the reader's again when
	// that is asked for the next chunk.
	Text []byte
	// Records tell where each record ends and what is known of it. Nil means that each
	// line is one, whose stamp and message the translator of the log finds.
	Records []Record
	// First is the number of the first byte of Text in its file, for lines without
	// Records: with what a line says, it tells it from others that say the same.
	First uint64
	// Next is where to go on after this chunk, also after a restart.
	Next Position
	// Lost is how many records are known to have been lost before this chunk.
	Lost uint64
	// More says that there may be more to read already. If not, all that had been
	// written when the chunk was made has been handed out.
	More bool
}

// Record is one entry of a log whose writer tells more of it than its text.
type Record struct {
	End      int // of the record in the text of its chunk, past its newline
	Time     time.Time
	Number   uint64 // which it has in its log
	Priority int8   // of syslog, 0 (emergency) to 7 (debug); Unsaid if nobody says
	Facility int16  // of syslog, 0 for the kernel; Unsaid if nobody says
}

// NoPriority is the priority or the facility of which nothing is said.
const NoPriority = -1

// Kernel is the facility of the kernel.
const Kernel = 0

// Position is a place in a log, in the words of its reader. Empty is none.
type Position = json.RawMessage

// Reader follows a log.
type Reader interface {
	// Next waits for more of the log. It returns early, and with what there is, rather
	// than wait for a full chunk. An error that is not the context's says that the log
	// cannot be read now; the reader stays where it was, and may be asked again, at
	// once or later: what there is to wait for, it waits for itself.
	Next(ctx context.Context) (Chunk, error)
	Close() error
}

// ErrNotExist says that there is no such log now. A reader says so once, and then waits
// for it to come (back).
var ErrNotExist = errors.New("there is no such log")

// Translator finds the stamp and the message in a line, which has no newline. It is
// not ok if the line is none of this format. The message is a part of the line.
type Translator interface {
	Translate(line []byte) (at time.Time, message []byte, ok bool)
}
