package nodewatch

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

// maxFrame is larger than anything that the API server stores.
const maxFrame = 16 << 20

// stream is a watch that is under way.
type stream struct {
	body    io.ReadCloser
	results chan watch.Event
	cancel  context.CancelFunc
}

// Stop ends the watch.
func (s *stream) Stop() { s.cancel() }

// ResultChan is closed when the watch has ended.
func (s *stream) ResultChan() <-chan watch.Event { return s.results }

// run sends what comes, until ctx ends, the server does, or something comes
// that cannot be read. A connection that breaks ends the watch as the server
// does: it is taken up again from where it was.
func (s *stream) run(ctx context.Context) {
	defer close(s.results)
	defer s.body.Close()
	defer s.cancel()
	decode := newDecoder()
	var frame []byte
	for {
		var err error
		if frame, err = readFrame(s.body, frame); err != nil {
			return
		}
		event, err := decode.event(frame)
		if err != nil {
			status := apierrors.NewInternalError(fmt.Errorf("reading the watch of nodes: %w", err)).Status()
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

// readFrame reads what one event takes, into the room of the one before.
func readFrame(from io.Reader, room []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(head[:]))
	if size > maxFrame {
		return nil, fmt.Errorf("an event of %d bytes", size)
	}
	if cap(room) < size {
		room = make([]byte, size+size/4)
	}
	_, err := io.ReadFull(from, room[:size])
	return room[:size], err
}
