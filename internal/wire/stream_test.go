package wire

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func TestReadFrame(t *testing.T) {
	sized := func(size uint32, content string) io.Reader {
		return bytes.NewReader(append(binary.BigEndian.AppendUint32(nil, size), content...))
	}
	room := make([]byte, 2)
	for _, test := range []struct {
		name string
		from io.Reader
		want string
		err  error
	}{
		{"fits", sized(2, "abc"), "ab", nil},
		{"grows", sized(3, "abc"), "abc", nil},
		{"is empty", sized(0, ""), "", nil},
		{"ends between two", strings.NewReader(""), "", io.EOF},
		{"ends within one", sized(9, "abc"), "", io.ErrUnexpectedEOF},
		{"ends within a size", strings.NewReader("ab"), "", io.ErrUnexpectedEOF},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := readFrame(test.from, room)
			if !errors.Is(err, test.err) || err == nil && string(got) != test.want {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	if _, err := readFrame(sized(maxFrame+1, ""), room); !errors.Is(err, errTooLarge) || !strings.Contains(err.Error(), strconv.Itoa(maxFrame+1)) {
		t.Errorf("an event of any size is read: %v", err)
	}
}

func TestStreamSaysWhatItCannotRead(t *testing.T) {
	for name, body := range map[string]string{
		"another form":    `{"type":"ADDED","object":{"kind":"Node"}}`,
		"something else":  "\x00\x00\x00\x02ab",
		"another message": "\x00\x00\x00\x04\x0a\x02ab",
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			decode := func(frame []byte) (watch.Event, error) { _, err := Open(frame); return watch.Event{}, err }
			s := &stream{body: io.NopCloser(strings.NewReader(body)), results: make(chan watch.Event, 1), cancel: cancel, Reader: Reader{What: "nodes", Decode: decode, Silence: LongestSilence}}
			s.run(ctx)
			event := <-s.results
			if status, ok := event.Object.(*metav1.Status); event.Type != watch.Error || !ok || !strings.Contains(status.Message, "reading the watch of nodes") {
				t.Errorf("it ends with %+v", event)
			}
		})
	}
}

// gathers runs a stream of frames of one byte, and returns after how long each came.
func gathers(t *testing.T, body io.ReadCloser, gather time.Duration, count int) (at []time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	decode := func([]byte) (watch.Event, error) { return watch.Event{Type: watch.Modified}, nil }
	s := &stream{body: body, results: make(chan watch.Event), cancel: cancel, Reader: Reader{What: "nodes", Decode: decode, Silence: LongestSilence, Gather: gather}}
	begin := time.Now()
	go s.run(ctx)
	for range count {
		<-s.results
		at = append(at, time.Since(begin))
	}
	return at
}

// connection holds what was sent until it is read.
type connection chan []byte

func (c connection) Read(to []byte) (int, error) {
	sent, open := <-c
	if !open {
		return 0, io.EOF
	}
	return copy(to, sent), nil
}

func TestEventsGatherWhereTheyComeOneByOne(t *testing.T) {
	const count, every = 100, 12 * time.Millisecond
	frame := []byte{0, 0, 0, 1, 'x'}
	trickle := func() io.ReadCloser {
		line := make(connection, count)
		go func() {
			defer close(line)
			for range count {
				time.Sleep(every) //nolint:forbidigo // nobody waits: the clock is the bubble's
				line <- frame
			}
		}()
		return io.NopCloser(bufio.NewReader(line))
	}
	moments := func(at []time.Duration) (n int) {
		for i := range at {
			if i == 0 || at[i] != at[i-1] {
				n++
			}
		}
		return n
	}
	for name, test := range map[string]struct {
		gather       time.Duration
		least, most  int
		latest       time.Duration
		comeTogether bool
	}{
		"one by one where nobody may wait": {gather: 0, least: count, most: count, latest: count * every},
		"seldom where they may":            {gather: time.Second, least: 2, most: 4, latest: count*every + time.Second},
		"at once where they come at once":  {gather: time.Second, least: 1, most: 1, comeTogether: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				body := io.NopCloser(bytes.NewReader(bytes.Repeat(frame, count)))
				if !test.comeTogether {
					body = trickle()
				}
				at := gathers(t, body, test.gather, count)
				if n, last := moments(at), at[count-1]; n < test.least || n > test.most || last > test.latest {
					t.Errorf("they came at %d moments, the last after %s", n, last)
				}
			})
		})
	}
}
