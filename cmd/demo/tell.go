package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

const (
	width     = 100
	timeWidth = 9
	whoWidth  = 14

	outputIndent = "      "
)

// teller prints the story. Every line of a scene begins with the time since the
// last thing that was done to the cluster, and with whom it is about.
type teller struct {
	out io.Writer

	mu    sync.Mutex
	began time.Time         // of the time that lines tell
	told  map[string]bool   // reasons and the like, in this scene
	last  map[string]string // words about each node
	// silent keeps lines back while there is no scene.
	silent bool
	// free is set when the story is over and somebody else acts.
	free bool
}

func newTeller(out io.Writer) *teller {
	return &teller{out: out, silent: true, told: map[string]bool{}, last: map[string]string{}}
}

// say tells what the demo itself does.
func (t *teller) say(format string, args ...any) {
	t.print(wrap("demo: ", fmt.Sprintf(format, args...)))
}

// print prints text as it is.
func (t *teller) print(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintln(t.out, text)
}

// open begins a scene.
func (t *teller) open(title string) {
	t.print("\n" + wrap("", title) + "\n")
	t.mu.Lock()
	defer t.mu.Unlock()
	t.silent, t.began = false, time.Now()
	clear(t.told)
}

// letGo tells from now on what others do.
func (t *teller) letGo() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free, t.silent = true, false
}

// others says whether others than the story act.
func (t *teller) others() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.free
}

// begin sets the clock of the lines to zero.
func (t *teller) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.began = time.Now()
}

// line tells of something that has just been seen.
func (t *teller) line(who, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.silent {
		return
	}
	head := fmt.Sprintf("%*s  %-*s  ", timeWidth, span(time.Since(t.began)), whoWidth, called(who))
	fmt.Fprintln(t.out, wrap(head, fmt.Sprintf(format, args...)))
}

// output shows what a command has printed, line by line. What is too long for a line
// goes on in the next, further in.
func (t *teller) output(text string) {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimSpace(text) + "\n") {
		indent := outputIndent
		line = strings.TrimRight(line, " \n")
		for len(indent)+len(line) > width {
			at := strings.LastIndex(line[:width-len(indent)+1], " ")
			if at < 0 { // there is nowhere to break it
				break
			}
			b.WriteString(strings.TrimRight(indent+line[:at], " ") + "\n")
			line, indent = line[at+1:], outputIndent+outputIndent
		}
		b.WriteString(strings.TrimRight(indent+line, " ") + "\n")
	}
	t.print("\n" + b.String())
}

// once tells of something that would be said of many nodes in a scene.
func (t *teller) once(who, text string) {
	t.mu.Lock()
	known := t.told[text] && !t.free
	t.told[text] = true
	t.mu.Unlock()
	if !known {
		t.line(who, "%s", text)
	}
}

// quote tells why, in the controller's words. In a scene that is once for each
// kind of reason: the words of a storm differ in nothing but the node. What
// others do is told every time, but not what an Event and a status both say.
func (t *teller) quote(who, reason, words string) {
	t.mu.Lock()
	known := t.told[reason]
	if t.free {
		known = t.last[who] == reason+words
	}
	t.told[reason], t.last[who] = true, reason+words
	t.mu.Unlock()
	if !known {
		t.line(who, "%s: %s", reason, words)
	}
}

// wrap writes text behind a head and breaks it into lines that begin where the
// first one does. A word that is too long for a line has its own.
func wrap(head, text string) string {
	var b strings.Builder
	b.WriteString(head)
	column := len(head)
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case column+1+len(word) > width:
			b.WriteString("\n" + strings.Repeat(" ", len(head)))
			column = len(head)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

// span tells a time that has passed.
func span(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// subject names one node, or counts several.
func subject(nodes []string) string {
	if len(nodes) == 1 {
		return nodes[0]
	}
	return fmt.Sprintf("%d nodes", len(nodes))
}

// list joins names as a sentence does.
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
