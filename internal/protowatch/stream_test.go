package protowatch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

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
		t.Errorf("an event without size limit is read: %v", err)
	}
}

func TestStreamReportsDecodingErrors(t *testing.T) {
	for name, body := range map[string]string{
		"another form":    `{"type":"ADDED","object":{"kind":"Node"}}`,
		"something else":  "\x00\x00\x00\x02ab",
		"another message": "\x00\x00\x00\x04\x0a\x02ab",
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			decode := func(frame []byte) (watch.Event, error) { _, err := DecodeEvent(frame); return watch.Event{}, err }
			s := &stream{body: io.NopCloser(strings.NewReader(body)), results: make(chan watch.Event, 1), cancel: cancel, Reader: Reader{Resource: "nodes", Decode: decode, IdleTimeout: IdleTimeout}}
			s.run(ctx)
			event := <-s.results
			if status, ok := event.Object.(*metav1.Status); event.Type != watch.Error || !ok || !strings.Contains(status.Message, "reading the watch of nodes") {
				t.Errorf("it ends with %+v", event)
			}
		})
	}
}
