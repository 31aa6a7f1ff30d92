package kmsg

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/procfs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// ring is a kernel log as documented: a few records, of which new ones overwrite the
// oldest, and readers that each have a cursor.
type ring struct {
	t     *testing.T
	size  int
	first uint64 // number of the oldest record
	raw   []string
	now   time.Time

	// meanwhile runs once when a reader finds nothing more. Then the reader wakes up.
	meanwhile func()

	fail  error // returned by every read
	grace int   // number of reads before fail applies
}

// booted is the boot of the ring's machine.
var booted = procfs.Boot{ID: "this", Time: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)}

func newRing(t *testing.T, size int) *ring {
	t.Helper()
	return &ring{t: t, size: size, now: booted.Time.Add(time.Hour)}
}

// stamp returns the kernel's current timestamp.
func (k *ring) stamp() time.Duration { return k.now.Sub(booted.Time) }

// add writes a kernel record with the current timestamp.
func (k *ring) add(message string) { k.addAt(k.stamp(), message) }

func (k *ring) addAt(stamp time.Duration, message string) {
	number := k.first + uint64(len(k.raw))
	k.raw = append(k.raw, fmt.Sprintf("6,%d,%d,-;%s\n", number, stamp.Microseconds(), message))
	k.drop(len(k.raw) - k.size)
}

// skip leaves out a number.
func (k *ring) skip() {
	k.raw = append(k.raw, "")
	k.drop(len(k.raw) - k.size)
}

func (k *ring) drop(n int) {
	if n > 0 {
		k.first += uint64(n)
		k.raw = k.raw[n:]
	}
}

// cursor is the position of a reader in a ring.
type cursor struct {
	*ring
	next uint64
	wake *os.File
}

func (c *cursor) Read(_ int, to []byte) (int, error) {
	if c.fail != nil {
		if c.grace == 0 {
			return 0, c.fail
		}
		c.grace--
	}
	if c.next < c.first {
		c.next = c.first
		return 0, unix.EPIPE
	}
	for c.next < c.first+uint64(len(c.raw)) {
		raw := c.raw[c.next-c.first]
		c.next++
		switch {
		case raw == "":
			continue
		case len(raw) > len(to):
			return 0, unix.EINVAL
		}
		return copy(to, raw), nil
	}
	if do := c.meanwhile; do != nil {
		c.meanwhile = nil
		do()
		if _, err := c.wake.Write([]byte{0}); err != nil {
			return 0, err
		}
	}
	return 0, unix.EAGAIN
}

func (c *cursor) Rewind(int) error {
	c.next = c.first
	return nil
}

// open returns a reader of the ring. Its file is a pipe, which wakes it.
func (k *ring) open(cfg Config) *Reader {
	k.t.Helper()
	out, in, err := os.Pipe()
	testkit.Must(k.t, err)
	k.t.Cleanup(func() { in.Close() })
	if cfg.Boot == (procfs.Boot{}) {
		cfg.Boot = booted
	}
	r := testkit.Value(newReader(out, &cursor{ring: k, next: k.first, wake: in}, func() time.Time { return k.now }, cfg)).Must(k.t)
	k.t.Cleanup(func() { r.Close() })
	return r
}
