package subprocess

import (
	"os"
	"time"
)

// output reads a pipe of a program until all writers have closed it.
type output struct {
	pipe *os.File
	kept []byte
	done chan struct{} // closed when the pipe is no longer read
}

// newOutput opens a pipe. The program gets the returned file.
func newOutput(limit int) (*output, *os.File, error) {
	pipe, end, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	return &output{pipe: pipe, kept: make([]byte, 0, limit), done: make(chan struct{})}, end, nil
}

// read keeps the beginning and discards the rest, so that the program never blocks on a
// full pipe.
func (o *output) read() {
	defer close(o.done)
	defer o.pipe.Close()
	var discard []byte
	for {
		buffer := o.kept[len(o.kept):cap(o.kept)]
		if len(buffer) == 0 {
			if discard == nil {
				discard = make([]byte, 64<<10) // capacity of a pipe
			}
			buffer = discard
		}
		n, err := o.pipe.Read(buffer)
		if len(o.kept) < cap(o.kept) {
			o.kept = o.kept[:len(o.kept)+n]
		}
		if err != nil {
			return // all writers have closed the pipe, or the deadline has passed
		}
	}
}

// end waits until everything is read, at most until the given time: a detached process may
// hold the pipe open forever.
func (o *output) end(deadline time.Time) string {
	// Pipes support deadlines, and a closed pipe needs none.
	_ = o.pipe.SetReadDeadline(deadline)
	<-o.done
	return string(o.kept)
}
