package kmsg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/boot"
	"github.com/resourcestack/autohealer/internal/probe/logs"
)

// Path is where the kernel shows its log.
const Path = "/dev/kmsg"

const (
	// A chunk ends after so many records or, about, bytes.
	mostRecords = 256
	mostText    = 64 << 10
	// longest record that can be read, dictionary and all. Kernels make 8 KiB at most,
	// newer ones 2.
	longest = 16 << 10
	// patience is how many reads in a row may yield no record before that is an error.
	patience = 100
)

// Config of a reader.
type Config struct {
	// Path of the log, /dev/kmsg if empty.
	Path string
	// From is where an earlier reader of the same boot has left off. Another is passed
	// over, and PassedOver says why.
	From logs.Position
	// Since is the time from which on records are read where From does not say.
	Since time.Time
	// Boot of the machine.
	Boot boot.Boot
}

// Reader follows the kernel's log.
type Reader struct {
	path   string
	file   *os.File
	conn   syscall.RawConn
	source source
	now    func() time.Time
	passed error
	closed atomic.Bool

	boot   string
	since  time.Time
	opened time.Time
	clock  clock

	end     uint64 // number of the first record that was not there yet when the log was opened
	resumed bool   // there was a position
	next    uint64 // number of the next record; what is missing before it is lost
	told    bool   // the position at the end of the log has been told
	waited  bool   // there was nothing more, so that the next record is written just now

	raw     [longest]byte
	text    []byte
	records []logs.Record
	lost    uint64
	more    bool // there may be records that were not gathered
}

// source is the device behind a file.
type source interface {
	// Read reads one record. It says EAGAIN where there is none yet, EPIPE where the next
	// one was overwritten, and EINVAL where it is too long; it goes on with the one after.
	Read(fd int, to []byte) (int, error)
	// Rewind goes back to the oldest record.
	Rewind(fd int) error
}

type kernel struct{}

func (kernel) Read(fd int, to []byte) (int, error) { return unix.Read(fd, to) }

func (kernel) Rewind(fd int) error {
	_, err := unix.Seek(fd, 0, unix.SEEK_SET)
	return err
}

// position is where a reader is.
type position struct {
	Boot string `json:"boot"`
	Next uint64 `json:"next"`
	clock
}

// Open opens the log. Reading it takes the capability CAP_SYSLOG where the kernel is
// told to restrict it (kernel.dmesg_restrict), and in a container the device.
func Open(cfg Config) (*Reader, error) {
	if cfg.Path == "" {
		cfg.Path = Path
	}
	file, err := os.OpenFile(cfg.Path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("opening the kernel's log: %w; it takes a privileged container, or CAP_SYSLOG and the device", err)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the kernel's log: %w", err)
	}
	r, err := follow(file, kernel{}, wall, cfg)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return r, nil
}

// wall is the machine's clock as it is set. Go would compare two readings of it by how
// much time has passed, and not see that it was.
func wall() time.Time { return time.Now().Round(0) }

func follow(file *os.File, from source, now func() time.Time, cfg Config) (*Reader, error) {
	// A file that cannot be waited for is none of the kernel's.
	if err := file.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("opening the kernel's log: %s is not a log of the kernel (%w); it is %s", cfg.Path, err, Path)
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("opening the kernel's log: %w", err)
	}
	r := &Reader{
		path:   cfg.Path,
		file:   file,
		conn:   conn,
		source: from,
		now:    now,
		boot:   cfg.Boot.ID,
		since:  cfg.Since,
		opened: now(),
		clock:  clock{Booted: cfg.Boot.Time, Zero: cfg.Boot.Time},
		// Not nil, which would say that nothing is known of the lines of a chunk.
		records: []logs.Record{},
	}
	r.passed = r.resume(cfg.From)
	if err := r.survey(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", r.path, err)
	}
	return r, nil
}

// resume goes on where an earlier reader has left off, or says why not.
func (r *Reader) resume(from logs.Position) error {
	if len(from) == 0 {
		return nil
	}
	var p position
	if err := json.Unmarshal(from, &p); err != nil {
		return fmt.Errorf("reading a position in the kernel's log: %w", err)
	}
	if p.Boot != r.boot {
		return errors.New("the position in the kernel's log is of another boot")
	}
	r.resumed, r.next, r.clock = true, p.Next, r.clock.resume(p.clock)
	return nil
}

// survey goes through the log once, to see where it begins and where it ends now. What
// comes after was written since, whatever its stamp says.
func (r *Reader) survey() error {
	var trouble error
	err := r.conn.Read(func(fd uintptr) bool {
		for empty := true; ; {
			raw, err := r.one(int(fd))
			if errors.Is(err, unix.EAGAIN) {
				trouble = r.source.Rewind(int(fd))
				return true
			}
			if err != nil {
				trouble = err
				return true
			}
			rec, ok := parse(raw)
			if !ok {
				continue
			}
			if empty && !r.resumed {
				r.next = rec.number
			}
			empty, r.end = false, rec.number+1
		}
	})
	return errors.Join(err, trouble)
}

// PassedOver says why the reader did not go on from the position that it was given, nil
// if it did or if there was none.
func (r *Reader) PassedOver() error { return r.passed }

// Next returns what is there, or waits for it. The first chunk that reaches the end of
// the log may be empty: it tells the position from which a restart goes on.
func (r *Reader) Next(ctx context.Context) (logs.Chunk, error) {
	if err := ctx.Err(); err != nil {
		return logs.Chunk{}, err
	}
	r.text, r.records, r.waited = r.text[:0], r.records[:0], false
	var trouble error
	err := r.wait(ctx, func(fd uintptr) (done bool) {
		done, trouble = r.gather(int(fd))
		return done
	})
	switch {
	case trouble != nil:
		return logs.Chunk{}, fmt.Errorf("reading %s: %w", r.path, trouble)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return logs.Chunk{}, ctx.Err()
	case err != nil && r.closed.Load():
		return logs.Chunk{}, fmt.Errorf("reading %s: %w", r.path, os.ErrClosed)
	case err != nil:
		return logs.Chunk{}, fmt.Errorf("reading %s: %w", r.path, err)
	}
	next, err := json.Marshal(position{Boot: r.boot, Next: r.next, clock: r.clock})
	if err != nil {
		return logs.Chunk{}, fmt.Errorf("telling the position in %s: %w", r.path, err)
	}
	chunk := logs.Chunk{Text: r.text, Records: r.records, Next: next, Lost: r.lost, More: r.more}
	r.lost = 0
	return chunk, nil
}

// Close ends the reading, also of somebody who waits.
func (r *Reader) Close() error {
	r.closed.Store(true)
	return r.file.Close()
}

// wait calls gather now, and again when there may be more, until it is done or the
// context is.
func (r *Reader) wait(ctx context.Context, gather func(fd uintptr) bool) error {
	expired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(expired)
		// It fails only on a file that is closed, which nobody waits for.
		_ = r.file.SetReadDeadline(time.Unix(1, 0))
	})
	err := r.conn.Read(gather)
	if !stop() {
		<-expired
		_ = r.file.SetReadDeadline(time.Time{}) // likewise
	}
	return err
}

// gather reads what is there. It is done if there is something to tell.
func (r *Reader) gather(fd int) (done bool, err error) {
	r.more = true
	for len(r.records) < mostRecords && len(r.text) < mostText {
		raw, err := r.one(fd)
		switch {
		case err == nil:
			r.take(raw)
		case errors.Is(err, unix.EAGAIN):
			r.waited = r.told && len(r.records) == 0
			r.told, r.more = true, false
			return !r.waited, nil
		case len(r.records) > 0:
			return true, nil // it will still be so when the next chunk is asked for
		default:
			return true, err
		}
	}
	return true, nil
}

// one reads a record, or says EAGAIN if there is none.
func (r *Reader) one(fd int) ([]byte, error) {
	var err error
	for range patience {
		var n int
		n, err = r.source.Read(fd, r.raw[:])
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINVAL):
			// Overwritten before it was read, or too long to be: the kernel goes on with
			// the next, whose number tells how many are missing.
		case err != nil:
			return nil, err
		case n == 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return r.raw[:n], nil
		}
	}
	return nil, err
}

// take adds a record to the chunk, unless it is not asked for.
func (r *Reader) take(raw []byte) {
	rec, ok := parse(raw)
	if !ok {
		return // nothing is known of it, not even its number; the next one tells
	}
	old := rec.number < r.end
	if old && rec.number < r.next {
		return // by an earlier reader
	}
	if rec.number > r.next {
		r.lost += rec.number - r.next
	}
	r.next = rec.number + 1
	if !old {
		r.clock.settle(rec.stamp, r.opened, r.now(), r.waited)
		r.waited = false
	}
	at := r.clock.at(rec.stamp)
	if old && !r.resumed && at.Before(r.since) {
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
