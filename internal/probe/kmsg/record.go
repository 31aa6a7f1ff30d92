package kmsg

import (
	"bytes"
	"math"
	"time"
)

// record is a record of the kernel log.
type record struct {
	priority int8
	facility int16
	number   uint64
	stamp    time.Duration // since the boot, without the time that the machine was suspended
	message  []byte        // a slice of the parsed text
}

// parse parses a record: "priority,number,microseconds,flags;message", then the dictionary
// lines. Kernels may add fields between the flags and the semicolon.
func parse(text []byte) (record, bool) {
	head, message, ok := bytes.Cut(text, []byte{';'})
	if !ok {
		return record{}, false
	}
	code, head, ok := number(head, math.MaxInt16<<3|7)
	if !ok {
		return record{}, false
	}
	sequence, head, ok := number(head, math.MaxUint64)
	if !ok {
		return record{}, false
	}
	micros, _, ok := number(head, math.MaxInt64/uint64(time.Microsecond))
	if !ok {
		return record{}, false
	}
	message, _, _ = bytes.Cut(message, []byte{'\n'})
	return record{
		priority: int8(code & 7),
		facility: int16(code >> 3),
		number:   sequence,
		stamp:    time.Duration(micros) * time.Microsecond,
		message:  bytes.TrimSpace(message),
	}, true
}

// number parses a decimal number up to limit that ends at a comma. It returns the rest of
// the text.
func number(text []byte, limit uint64) (value uint64, rest []byte, ok bool) {
	digits, rest, ok := bytes.Cut(text, []byte{','})
	if !ok || len(digits) == 0 {
		return 0, nil, false
	}
	for _, c := range digits {
		digit := uint64(c - '0')
		if digit > 9 || value > (limit-digit)/10 {
			return 0, nil, false
		}
		value = value*10 + digit
	}
	return value, rest, true
}
