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
	// maxFrame is larger than any object that the API server stores.
	maxFrame = 16 << 20
	// maxList is larger than any realistic list.
	maxList = 1 << 30
)

// IdleTimeout is how long a watch may be idle until it ends. The connection may be dead
// without notice, for example after a load balancer lost its backend. HTTP/2 would send a
// ping. In a small cluster without changes, this costs one request per timeout.
const IdleTimeout = 90 * time.Second

// Reader decodes the events of a watch.
type Reader struct {
	// Resource is the name of the resource, for messages.
	Resource string
	// Decode decodes one event. It must not keep the frame.
	Decode func(frame []byte) (watch.Event, error)
	// Ended, if set, is called after the last call of Decode.
	Ended func()
	// IdleTimeout is how long the watch may be idle. Zero means the constant IdleTimeout.
	IdleTimeout time.Duration
}

// stream is a running watch.
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

// run sends events until ctx ends, the server ends the watch, or an event cannot be decoded. A
// broken or idle connection ends the watch without an error event, so the reflector continues
// from the last version.
func (s *stream) run(ctx context.Context) {
	defer s.body.Close()
	defer s.cancel()
	idleTimer := time.AfterFunc(s.IdleTimeout, s.cancel)
	defer idleTimer.Stop()
	var frame []byte
	for {
		var err error
		var event watch.Event
		frame, err = readFrame(s.body, frame)
		idleTimer.Reset(s.IdleTimeout)
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

var errTooLarge = errors.New("too large")

// readFrame reads one frame into buffer, or into a larger one.
func readFrame(from io.Reader, buffer []byte) ([]byte, error) {
	var header [4]byte
	if _, err := io.ReadFull(from, header[:]); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(header[:]))
	if size > maxFrame {
		return nil, fmt.Errorf("%w: %d bytes, so it is probably not a watch", errTooLarge, size)
	}
	if cap(buffer) < size {
		buffer = make([]byte, size+size/4)
	}
	_, err := io.ReadFull(from, buffer[:size])
	return buffer[:size], err
}
