package subprocess

import (
	"os"
	"time"
)

// output is one of the two that a program has, read until nobody holds it any more.
type output struct {
	pipe *os.File
	kept []byte
	done chan struct{} // closed when nothing more is kept
}

// listen opens an output. The program gets the file.
func listen(most int) (*output, *os.File, error) {
	pipe, end, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	return &output{pipe: pipe, kept: make([]byte, 0, most), done: make(chan struct{})}, end, nil
}

// read keeps the beginning, and throws the rest away so that the program does not wait
// for somebody to take it.
func (o *output) read() {
	defer close(o.done)
	defer o.pipe.Close()
	var waste []byte
	for {
		room := o.kept[len(o.kept):cap(o.kept)]
		if len(room) == 0 {
			if waste == nil {
				waste = make([]byte, 64<<10) // what a pipe holds
			}
			room = waste
		}
		n, err := o.pipe.Read(room)
		if len(o.kept) < cap(o.kept) {
			o.kept = o.kept[:len(o.kept)+n]
		}
		if err != nil {
			return // it has ended, or nobody waits for it any longer
		}
	}
}

// end waits until all is read, but not for longer than given: somebody who has left may
// hold the output open for ever.
func (o *output) end(last time.Time) string {
	// A pipe can always have a deadline; one that is closed already needs none.
	_ = o.pipe.SetReadDeadline(last)
	<-o.done
	return string(o.kept)
}
