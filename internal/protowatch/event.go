package protowatch

import (
	"bytes"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Field numbers in the .proto files of Kubernetes.
const (
	eventType, eventObject  = 1, 2 // meta/v1 WatchEvent
	extensionRaw            = 1    // runtime RawExtension
	unknownType, unknownRaw = 1, 2 // runtime Unknown
	typeKind                = 2    // runtime TypeMeta
)

// magic is the prefix of every object that Kubernetes encodes as protobuf.
var magic = []byte{'k', '8', 's', 0}

// ErrMalformed means that bytes are not a valid message.
var ErrMalformed = errors.New("malformed")

// Event is an encoded watch event.
type Event struct {
	Type   watch.EventType
	Kind   []byte // of the object
	Object []byte // encoded
}

// DecodeEvent reads an event from a frame.
func DecodeEvent(frame []byte) (event Event, err error) {
	var raw []byte
	if err := Fields(frame, func(number protowire.Number, value []byte) error {
		switch number {
		case eventType:
			event.Type = typeOf(value)
		case eventObject:
			return Fields(value, KeepField(extensionRaw, &raw))
		}
		return nil
	}); err != nil {
		return event, fmt.Errorf("the event: %w", err)
	}
	message, found := bytes.CutPrefix(raw, magic)
	if !found {
		return event, fmt.Errorf("the object of a %s event: %w", event.Type, ErrMalformed)
	}
	if err := Fields(message, func(number protowire.Number, value []byte) error {
		switch number {
		case unknownType:
			return Fields(value, KeepField(typeKind, &event.Kind))
		case unknownRaw:
			event.Object = value
		}
		return nil
	}); err != nil {
		return event, fmt.Errorf("the object of a %s event: %w", event.Type, err)
	}
	return event, nil
}

// typeOf returns an event type. It allocates nothing for known types.
func typeOf(text []byte) watch.EventType {
	for _, known := range [...]watch.EventType{watch.Modified, watch.Added, watch.Deleted, watch.Bookmark, watch.Error} {
		if string(text) == string(known) {
			return known
		}
	}
	return watch.EventType(text)
}

// Status returns the Status of an error event. is is false if the event has another object.
func (e Event) Status() (status *metav1.Status, is bool, err error) {
	if string(e.Kind) != "Status" {
		return nil, false, nil
	}
	status = &metav1.Status{}
	return status, true, status.Unmarshal(e.Object)
}

// Fields calls visit with every length-delimited field of a message (strings, bytes and
// messages), and with the encoded value of every varint (numbers and booleans).
func Fields(message []byte, visit func(number protowire.Number, value []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return ErrMalformed
		}
		message = message[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
				return ErrMalformed
			}
			if kind == protowire.VarintType {
				if err := visit(number, message[:n]); err != nil {
					return err
				}
			}
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return ErrMalformed
		}
		if err := visit(number, value); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}

// KeepField returns a visitor that stores one field. The last occurrence counts.
func KeepField(number protowire.Number, in *[]byte) func(protowire.Number, []byte) error {
	return func(at protowire.Number, value []byte) error {
		if at == number {
			*in = value
		}
		return nil
	}
}
