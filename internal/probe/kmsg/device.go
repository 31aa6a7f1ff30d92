package kmsg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxRecord is the longest readable record, including its dictionary. Kernels write at
	// most 8 KiB, newer ones 2 KiB.
	maxRecord = 16 << 10
	// maxEmptyReads is the number of consecutive reads without a record after which Next
	// returns an error.
	maxEmptyReads = 100
)

// source reads the device behind a file descriptor.
type source interface {
	// Read reads one record. It returns EAGAIN if there is none yet, EPIPE if the next record
	// was overwritten, and EINVAL if it is too long. After an error it continues with the
	// following record.
	Read(fd int, to []byte) (int, error)
	// Rewind returns to the oldest record.
	Rewind(fd int) error
}

type kernelSource struct{}

func (kernelSource) Read(fd int, to []byte) (int, error) { return unix.Read(fd, to) }

func (kernelSource) Rewind(fd int) error {
	_, err := unix.Seek(fd, 0, unix.SEEK_SET)
	return err
}

// device is the open log.
type device struct {
	path   string
	file   *os.File
	conn   syscall.RawConn
	source source
	closed atomic.Bool
	raw    [maxRecord]byte // the last record
}

// init prepares a file for reading. Only a device that supports polling can be the kernel
// log.
func (d *device) init(path string, file *os.File, from source) (err error) {
	if err := file.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("%s is not a kernel log (%w); use %s", path, err, Path)
	}
	d.path, d.file, d.source = path, file, from
	d.conn, err = file.SyscallConn()
	return err
}

func (d *device) close() error {
	d.closed.Store(true)
	return d.file.Close()
}

// bounds reads the log once. It returns the number of the oldest record and the number
// after the newest. Records after the end were written later, whatever their timestamps
// say.
func (d *device) bounds() (start, end uint64, err error) {
	var readErr error
	err = d.conn.Read(func(fd uintptr) bool {
		for empty := true; ; {
			raw, err := d.readRecord(int(fd))
			if errors.Is(err, unix.EAGAIN) {
				readErr = d.source.Rewind(int(fd))
				return true
			}
			if err != nil {
				readErr = err
				return true
			}
			rec, ok := parse(raw)
			if !ok {
				continue
			}
			if empty {
				start = rec.number
			}
			empty, end = false, rec.number+1
		}
	})
	return start, end, errors.Join(err, readErr)
}

// wait calls gather, and calls it again when there may be more to read, until gather or
// ctx is done.
func (d *device) wait(ctx context.Context, gather func(fd uintptr) bool) error {
	expired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(expired)
		// It fails only for a closed file, and then no read is pending.
		_ = d.file.SetReadDeadline(time.Unix(1, 0))
	})
	err := d.conn.Read(gather)
	if !stop() {
		<-expired
		_ = d.file.SetReadDeadline(time.Time{}) // fails only for a closed file
	}
	return err
}

// readRecord reads a record. It returns EAGAIN if there is none.
func (d *device) readRecord(fd int) ([]byte, error) {
	var err error
	for range maxEmptyReads {
		var n int
		n, err = d.source.Read(fd, d.raw[:])
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINVAL):
			// The record was overwritten or is too long. The kernel continues with the next one,
			// and its number tells how many are missing.
		case err != nil:
			return nil, err
		case n == 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return d.raw[:n], nil
		}
	}
	return nil, err
}
