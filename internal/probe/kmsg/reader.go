package kmsg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/probe/procfs"
)

// Path is the device of the kernel log.
const Path = "/dev/kmsg"

const (
	// A chunk ends after this many records, or after about this many bytes.
	maxRecords = 256
	maxText    = 64 << 10
)

// Config configures a reader.
type Config struct {
	// Path is the path of the log. The default is /dev/kmsg.
	Path string
	// From is the position of an earlier reader of the same boot. The reader ignores any
	// other position, and ResumeError says why.
	From logs.Position
	// Since is the time of the oldest record to read if there is no valid From.
	Since time.Time
	// Boot is the current boot of the machine.
	Boot procfs.Boot
}

// Reader follows the kernel log.
type Reader struct {
	device    device
	now       func() time.Time
	opened    time.Time
	end       uint64    // number of the first record after those that existed when the log was opened
	since     time.Time // time of the oldest of those records to return
	resumeErr error

	boot         string
	next         uint64 // number of the next record; gaps before it are lost records
	clock        clock
	positionSent bool // the position at the end of the log was returned
	caughtUp     bool // the end was reached, so the next record is written just now

	text    []byte
	records []logs.Record
	lost    uint64
	more    bool // there may be more records than the chunk holds
}

// position is the stored position of a reader.
type position struct {
	Boot string `json:"boot"`
	Next uint64 `json:"next"`
	clock
}

// Open opens the log. It requires CAP_SYSLOG if the kernel restricts access
// (kernel.dmesg_restrict), and in a container the device.
func Open(cfg Config) (*Reader, error) {
	if cfg.Path == "" {
		cfg.Path = Path
	}
	file, err := os.OpenFile(cfg.Path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("opening the kernel log: %w; run the container privileged, or with CAP_SYSLOG and the device", err)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the kernel log: %w", err)
	}
	r, err := newReader(file, kernelSource{}, wallClock, cfg)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return r, nil
}

// wallClock returns the system time without Go's monotonic reading, which would hide that
// the system time was set.
func wallClock() time.Time { return time.Now().Round(0) }

func newReader(file *os.File, from source, now func() time.Time, cfg Config) (*Reader, error) {
	r := &Reader{
		now:    now,
		opened: now(),
		boot:   cfg.Boot.ID,
		clock:  clock{Booted: cfg.Boot.Time, Zero: cfg.Boot.Time},
		// Not nil, because nil means that the chunk has no metadata.
		records: []logs.Record{},
	}
	if err := r.device.init(cfg.Path, file, from); err != nil {
		return nil, fmt.Errorf("opening the kernel log: %w", err)
	}
	start, end, err := r.device.bounds()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", cfg.Path, err)
	}
	r.end = end
	if resumed, err := r.resume(cfg.From); !resumed {
		r.next, r.since, r.resumeErr = start, cfg.Since, err
	}
	return r, nil
}

// resume continues at the position of an earlier reader. The error says why it cannot.
func (r *Reader) resume(from logs.Position) (resumed bool, err error) {
	if len(from) == 0 {
		return false, nil
	}
	var p position
	if err := json.Unmarshal(from, &p); err != nil {
		return false, fmt.Errorf("reading a position in the kernel log: %w", err)
	}
	if p.Boot != r.boot {
		return false, errors.New("the position in the kernel log is of another boot")
	}
	r.next, r.clock = p.Next, r.clock.resume(p.clock)
	return true, nil
}

// ResumeError returns why the reader did not continue at From. It is nil if it did, or if
// there was no From.
func (r *Reader) ResumeError() error { return r.resumeErr }

// Next returns the available records, or waits for a record. The first chunk at the end of the
// log may be empty: it returns the position for a restart.
func (r *Reader) Next(ctx context.Context) (logs.Chunk, error) {
	if err := ctx.Err(); err != nil {
		return logs.Chunk{}, err
	}
	r.text, r.records, r.caughtUp = r.text[:0], r.records[:0], false
	var readErr error
	err := r.device.wait(ctx, func(fd uintptr) (done bool) {
		done, readErr = r.gather(int(fd))
		return done
	})
	switch {
	case readErr != nil:
		return logs.Chunk{}, fmt.Errorf("reading %s: %w", r.device.path, readErr)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return logs.Chunk{}, ctx.Err()
	case err != nil && r.device.closed.Load():
		return logs.Chunk{}, fmt.Errorf("reading %s: %w", r.device.path, os.ErrClosed)
	case err != nil:
		return logs.Chunk{}, fmt.Errorf("reading %s: %w", r.device.path, err)
	}
	next, err := json.Marshal(position{Boot: r.boot, Next: r.next, clock: r.clock})
	if err != nil {
		return logs.Chunk{}, fmt.Errorf("encoding the position in %s: %w", r.device.path, err)
	}
	chunk := logs.Chunk{Text: r.text, Records: r.records, Next: next, Lost: r.lost, More: r.more}
	r.lost = 0
	return chunk, nil
}

// Close closes the log. A pending Next returns.
func (r *Reader) Close() error { return r.device.close() }

// gather reads the available records. It returns done true if Next can return.
func (r *Reader) gather(fd int) (done bool, err error) {
	r.more = true
	for len(r.records) < maxRecords && len(r.text) < maxText {
		raw, err := r.device.readRecord(fd)
		switch {
		case err == nil:
			r.add(raw)
		case errors.Is(err, unix.EAGAIN):
			r.caughtUp = r.positionSent && len(r.records) == 0
			r.positionSent, r.more = true, false
			return !r.caughtUp, nil
		case len(r.records) > 0:
			return true, nil // the next call of Next returns the error
		default:
			return true, err
		}
	}
	return true, nil
}

// add adds a record to the chunk, unless it is older than requested.
func (r *Reader) add(raw []byte) {
	rec, ok := parse(raw)
	if !ok {
		return // even its number is unknown; the number of the next record reveals the gap
	}
	old := rec.number < r.end
	if old && rec.number < r.next {
		return // an earlier reader has returned it
	}
	if rec.number > r.next {
		r.lost += rec.number - r.next
	}
	r.next = rec.number + 1
	if !old {
		r.clock.adjust(rec.stamp, r.opened, r.now(), r.caughtUp)
		r.caughtUp = false
	}
	at := r.clock.at(rec.stamp)
	if old && at.Before(r.since) {
		return
	}
	if len(rec.message) == 0 {
		return
	}
	r.text = append(append(r.text, rec.message...), '\n')
	r.records = append(r.records, logs.Record{
		End:      len(r.text),
		Time:     at,
		Number:   rec.number,
		Priority: rec.priority,
		Facility: rec.facility,
	})
}
