package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress rewrites one line on a terminal, and elsewhere prints a line every
// ten seconds, so that a CI log shows life without drowning in it.
type progress struct {
	label    string
	began    time.Time
	last     time.Time
	terminal bool
	out      io.Writer
}

func newProgress(label string) *progress {
	info, err := os.Stdout.Stat()
	return &progress{label: label, began: time.Now(), terminal: err == nil && info.Mode()&os.ModeCharDevice != 0, out: os.Stdout}
}

func (s *progress) step(what string) {
	every := 10 * time.Second
	if s.terminal {
		every = 100 * time.Millisecond
	}
	if now := time.Now(); now.Sub(s.last) >= every {
		s.last = now
		s.print(fmt.Sprintf("%s: %s", s.label, what), s.terminal)
	}
}

func (s *progress) finish(done string) {
	s.print(fmt.Sprintf("%s: done in %s, %s", s.label, time.Since(s.began).Round(time.Second), done), false)
}

func (s *progress) print(line string, stay bool) {
	if s.terminal {
		line = "\r\x1b[K" + line
	}
	if !stay {
		line += "\n"
	}
	fmt.Fprint(s.out, line)
}
