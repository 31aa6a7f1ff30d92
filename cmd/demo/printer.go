package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

const (
	width        = 100
	timeWidth    = 9
	subjectWidth = 14

	outputIndent = "      "
)

// printer prints the steps. Every line of a step starts with the time since the last action
// and the object it is about.
type printer struct {
	out io.Writer

	mu         sync.Mutex
	clockStart time.Time         // time zero of the printed times
	printed    map[string]bool   // reasons and texts of this step
	lastReason map[string]string // last reason by node
	// muted drops lines before the first step.
	muted bool
	// interactive is set after the last step, when the user acts.
	interactive bool
	// showsClock prints the time of day in place of the time since the last action.
	showsClock bool
}

func newPrinter(out io.Writer) *printer {
	return &printer{out: out, muted: true, printed: map[string]bool{}, lastReason: map[string]string{}}
}

// say prints a message of the demo itself.
func (p *printer) say(format string, args ...any) {
	p.print(wrap("demo: ", fmt.Sprintf(format, args...)))
}

// print prints text unchanged.
func (p *printer) print(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.out, text)
}

// startStep prints the title of a step and resets the clock.
func (p *printer) startStep(title string) {
	p.print("\n" + wrap("", title) + "\n")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.muted, p.clockStart = false, time.Now()
	clear(p.printed)
}

// startInteractive starts printing the effects of the user's actions.
func (p *printer) startInteractive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.interactive, p.muted = true, false
}

// isInteractive reports whether the user acts, after the last step.
func (p *printer) isInteractive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.interactive
}

// resetClock sets the time of the next lines to zero.
func (p *printer) resetClock() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clockStart = time.Now()
}

// line prints a change about an object, with the current time.
func (p *printer) line(subject, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.muted {
		return
	}
	at := formatDuration(time.Since(p.clockStart))
	if p.showsClock {
		at = time.Now().Format(time.TimeOnly)
	}
	head := fmt.Sprintf("%*s  %-*s  ", timeWidth, at, subjectWidth, displayName(subject))
	fmt.Fprintln(p.out, wrap(head, fmt.Sprintf(format, args...)))
}

// output prints the output of a command, indented. It breaks lines that are too long.
func (p *printer) output(text string) {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimSpace(text) + "\n") {
		indent := outputIndent
		line = strings.TrimRight(line, " \n")
		for len(indent)+len(line) > width {
			at := strings.LastIndex(line[:width-len(indent)+1], " ")
			if at < 0 { // no blank to break at
				break
			}
			b.WriteString(strings.TrimRight(indent+line[:at], " ") + "\n")
			line, indent = line[at+1:], outputIndent+outputIndent
		}
		b.WriteString(strings.TrimRight(indent+line, " ") + "\n")
	}
	p.print("\n" + b.String())
}

// once prints a text at most once in a step, whatever the node.
func (p *printer) once(subject, text string) {
	p.mu.Lock()
	known := p.printed[text] && !p.interactive
	p.printed[text] = true
	p.mu.Unlock()
	if !known {
		p.line(subject, "%s", text)
	}
}

// quote prints a reason of the controller or the agent. During the steps it prints each
// reason once per step, because the messages of a storm differ only in the node. Later it
// prints every reason, but not twice if an Event and a status have the same text.
func (p *printer) quote(subject, reason, message string) {
	p.mu.Lock()
	known := p.printed[reason]
	if p.interactive {
		known = p.lastReason[subject] == reason+message
	}
	p.printed[reason], p.lastReason[subject] = true, reason+message
	p.mu.Unlock()
	if !known {
		p.line(subject, "%s: %s", reason, message)
	}
}

// wrap breaks text into lines that are aligned behind head. A word that is too long gets
// its own line.
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

// formatDuration formats a duration in ms or s.
func formatDuration(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// subject returns the name of one node, or the number of nodes.
func subject(nodes []string) string {
	if len(nodes) == 1 {
		return nodes[0]
	}
	return fmt.Sprintf("%d nodes", len(nodes))
}

// joinNames joins names with commas and "and".
func joinNames(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
