package journal

import (
	"bytes"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// chunk collects entries until they are returned.
type chunk struct {
	text    []byte
	records []logs.Record
	full    bool     // there may be more entries
	lost    uint64   // entries that were lost since the last returned chunk
	cut     uint64   // truncated messages of all chunks
	offsets []uint64 // buffer for the fields of an entry
}

func (c *chunk) reset() { c.text, c.records, c.full = c.text[:0], c.records[:0], true }

// add adds the next entry of a file to the chunk.
func (c *chunk) add(s *source) error {
	var values fieldValues
	var err error
	values, c.offsets, err = s.fields(&s.next, c.offsets)
	if err != nil || values.message == 0 {
		return err
	}
	p, err := s.payload(values.message)
	if err != nil {
		return err
	}
	begin := len(c.text)
	text, cut, err := p.first(c.text, len(messagePrefix)+maxMessage)
	if err != nil {
		return err
	}
	if cut {
		c.cut++
	}
	message := bytes.TrimSpace(text[begin+len(messagePrefix):])
	c.text = text[:begin+copy(text[begin:], message)]
	c.text = append(c.text, '\n')
	if values.facility == logs.Kernel && !values.kernel {
		values.facility = noPriority // any process can set SYSLOG_FACILITY; only journald sets _TRANSPORT
	}
	c.records = append(c.records, logs.Record{
		End:      len(c.text),
		Time:     time.UnixMicro(int64(s.next.realtime)),
		Number:   s.next.number,
		Priority: int8(values.priority),
		Facility: values.facility,
	})
	return nil
}
