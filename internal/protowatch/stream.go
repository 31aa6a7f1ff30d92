package protowatch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// maxFrame is larger than anything that the API server stores.
	maxFrame = 16 << 20
	// maxList is larger than any list that anybody waits for.
	maxList = 1 << 30
)

// IdleTimeout is how long nothing may come until the watch is begun anew: the
// connection may be dead although nobody has said so, because some load balancer
// has lost its backend. HTTP/2 would have asked with a ping. Where no object says
// anything for so long, in a cluster of a handful, it costs a request.
const IdleTimeout = 90 * time.Second

// Reader is how the events of a watch are read.
type Reader struct {
	// Resource is watched, for people.
	Resource string
	// Decode reads one event. The frame is its own for as long only as that takes.
	Decode func(frame []byte) (watch.Event, error)
	// Ended, if there is one, is called when nothing is decoded any more.
	Ended func()
	// IdleTimeout is how long nothing may come; zero means LongestSilence.
	IdleTimeout time.Duration
}

// stream is a watch that is under way.
type stream struct {
	Reader
	body    io.ReadCloser
	results chan watch.Event
	cancel  context.CancelFunc
}

// Stop ends the watch.
func (s *stream) Stop() { s.cancel() }

// ResultChan is closed when the watch has ended.
func (s *stream) ResultChan() <-chan watch.Event { return s.results }

// run sends what comes, until ctx ends, the server does, or something comes
// that cannot be read. A connection that breaks or is silent for too long ends the
// watch as the server does: it is taken up again from where it was.
func (s *stream) run(ctx context.Context) {
	defer s.body.Close()
	defer s.cancel()
	alarm := time.AfterFunc(s.IdleTimeout, s.cancel)
	defer alarm.Stop()
	var frame []byte
	for {
		var err error
		var event watch.Event
		frame, err = readFrame(s.body, frame)
		alarm.Reset(s.IdleTimeout)
		if err == nil {
			event, err = s.Decode(frame)
		} else if !errors.Is(err, errTooLarge) {
			return
		}
		if err != nil {
			status := apierrors.NewInternalError(fmt.Errorf("reading the watch of %s: %w", s.Resource, err)).Status()
			event = watch.Event{Type: watch.Error, Object: &status}
		}
		select {
		case s.results <- event:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

var errTooLarge = errors.New("it is too large")

// readFrame reads what one event takes, into the room of the one before.
func readFrame(from io.Reader, room []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(head[:]))
	if size > maxFrame {
		return nil, fmt.Errorf("%w: %d bytes, if it is what was asked for at all", errTooLarge, size)
	}
	if cap(room) < size {
		room = make([]byte, size+size/4)
	}
	_, err := io.ReadFull(from, room[:size])
	return room[:size], err
}
