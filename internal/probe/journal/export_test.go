package journal

import (
	"bytes"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// OpenIn opens a journal in other directories than the machine's.
func OpenIn(config Config, volatile, persistent string) (*Reader, error) {
	r, err := Open(config)
	if err == nil {
		r.roots = []root{{volatile, true}, {persistent, false}}
	}
	return r, err
}

// DisablePolling disables polling.
func (r *Reader) DisablePolling() { r.notifier.interval = time.Hour }

// DisableNotify disables inotify.
func (r *Reader) DisableNotify() error {
	err := r.notifier.close()
	r.notifier.inotify = nil
	return err
}

// MaxMessage is the length at which messages are truncated.
const MaxMessage = maxMessage

// Read reads a file from memory.
func Read(b []byte, identifier string) (texts []string, records []logs.Record, lost uint64, err error) {
	f, err := openFile(bytes.NewReader(b), Config{Identifier: identifier}.wanted(), &unpacker{})
	if err != nil {
		return nil, nil, 0, err
	}
	if err := f.refresh(); err != nil {
		return nil, nil, 0, err
	}
	f.begin(0, 0)
	r := &Reader{sources: []*source{{file: f}}}
	for {
		r.take()
		if len(r.chunk.records) == 0 && !f.ready && f.cursor.index >= f.list.length {
			return texts, records, f.lost, f.fault
		}
		begin := 0
		for _, one := range r.chunk.records {
			texts = append(texts, string(r.chunk.text[begin:one.End-1]))
			records = append(records, one)
			begin = one.End
		}
	}
}
