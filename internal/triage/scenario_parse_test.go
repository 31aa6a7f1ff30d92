package triage_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/triage"
)

// command is a command of a scenario, or a line below it. Every word of it must be used.
type command struct {
	t      *testing.T
	where  string
	words  []string
	values map[string]string
	lines  []string
}

func newCommand(t *testing.T, d *datadriven.TestData) *command {
	t.Helper()
	c := &command{t: t, where: d.Pos, values: map[string]string{}}
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) == 0 {
			c.words = append(c.words, arg.Key)
			continue
		}
		if _, twice := c.values[arg.Key]; twice {
			c.fatalf("%s is given twice", arg.Key)
		}
		c.values[arg.Key] = strings.Join(arg.Vals, ",")
	}
	if d.Input != "" {
		c.lines = strings.Split(d.Input, "\n")
	}
	return c
}

func (c *command) fatalf(format string, args ...any) {
	c.t.Helper()
	c.t.Fatalf("%s: %s", c.where, fmt.Sprintf(format, args...))
}

// end fails if words of the command are left.
func (c *command) end() {
	c.t.Helper()
	if len(c.words) > 0 || len(c.values) > 0 || len(c.lines) > 0 {
		c.fatalf("unknown words %q %q %q", c.words, c.values, c.lines)
	}
}

func (c *command) hasWord() bool { return len(c.words) > 0 }

func (c *command) word(what string) string {
	c.t.Helper()
	if len(c.words) == 0 {
		c.fatalf("want %s", what)
	}
	word := c.words[0]
	c.words = c.words[1:]
	return word
}

func (c *command) flag(word string) bool {
	at := slices.Index(c.words, word)
	if at < 0 {
		return false
	}
	c.words = slices.Delete(c.words, at, at+1)
	return true
}

func (c *command) value(key string) string {
	value := c.values[key]
	delete(c.values, key)
	return value
}

// after takes two words, for example "for 10m", and returns the second.
func (c *command) after(word string) string {
	at := slices.Index(c.words, word)
	if at < 0 {
		return ""
	}
	if at+1 == len(c.words) {
		c.fatalf("%s needs a value", word)
	}
	value := c.words[at+1]
	c.words = slices.Delete(c.words, at, at+2)
	return value
}

// pair takes a word like Ready=False.
func (c *command) pair() (left, right string) {
	word := c.word("a condition like Ready=False")
	left, right, ok := strings.Cut(word, "=")
	if !ok {
		c.fatalf("want a condition like Ready=False, not %q", word)
	}
	return left, right
}

// rest takes all values that are left.
func (c *command) rest() map[string]string {
	values := c.values
	c.values = nil
	return values
}

// conditions takes all values that are left as conditions.
func (c *command) conditions() []triage.Condition {
	var rows []triage.Condition
	rest := c.rest()
	for _, kind := range slices.Sorted(maps.Keys(rest)) {
		if strings.ToLower(kind[:1]) == kind[:1] {
			c.fatalf("unknown option %s=%s; a condition begins with a capital letter", kind, rest[kind])
		}
		status, err := triage.ParseStatus(rest[kind])
		if err != nil {
			c.fatalf("%s: %v", kind, err)
		}
		rows = append(rows, triage.Condition{Type: kind, Status: status})
	}
	return rows
}

func (c *command) selector() triage.Selector {
	selector, err := triage.ParseSelector(c.value("selector"))
	if err != nil {
		c.fatalf("%v", err)
	}
	return selector
}

// windows takes the windows of a policy, for example window=(0 15 * * * for 10m).
func (c *command) windows() []dialect.Window {
	text := c.value("window")
	if text == "" {
		return nil
	}
	list, err := dialect.ParseWindows(text)
	if err != nil {
		c.fatalf("%v", err)
	}
	return list
}

func (c *command) takeLines() []*command {
	var lines []*command
	for _, line := range c.lines {
		lines = append(lines, &command{t: c.t, where: c.where, words: strings.Fields(line)})
	}
	c.lines = nil
	return lines
}

func (c *command) time(text string) time.Time {
	c.t.Helper()
	at, err := time.Parse(time.TimeOnly, text)
	if err != nil {
		c.fatalf("%v", err)
	}
	return day.Add(at.Sub(at.Truncate(24 * time.Hour)))
}

func (c *command) duration(text string) time.Duration {
	c.t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		c.fatalf("%v", err)
	}
	return d
}

// nodes takes a word that names nodes: worker-1, worker-[1-10] or worker-[1-3,7].
func (c *command) nodes() []string {
	c.t.Helper()
	word := c.word("nodes like worker-[1-10]")
	prefix, list, ok := strings.Cut(word, "[")
	if !ok {
		return []string{word}
	}
	list, ok = strings.CutSuffix(list, "]")
	if !ok {
		c.fatalf("want nodes like worker-[1-10], not %q", word)
	}
	var names []string
	for _, part := range strings.Split(list, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		first, err1 := strconv.Atoi(low)
		last, err2 := strconv.Atoi(high)
		if err1 != nil || err2 != nil || last < first {
			c.fatalf("want nodes like worker-[1-10], not %q", word)
		}
		for i := first; i <= last; i++ {
			names = append(names, prefix+strconv.Itoa(i))
		}
	}
	return names
}

// numbered splits worker-10 into worker- and 10.
func numbered(name string) (prefix string, number int) {
	prefix = strings.TrimRight(name, "0123456789")
	number, err := strconv.Atoi(name[len(prefix):])
	if err != nil {
		return name, -1
	}
	return prefix, number
}

// compareNatural sorts worker-2 before worker-10.
func compareNatural(a, b string) int {
	prefixA, a1 := numbered(a)
	prefixB, b1 := numbered(b)
	if prefixA != prefixB {
		return strings.Compare(prefixA, prefixB)
	}
	return a1 - b1
}

// join formats sorted names like a command does: worker-[1-3,7].
func join(names []string) string {
	var words []string
	for len(names) > 0 {
		prefix, first := numbered(names[0])
		var parts []string
		taken := 0
		for taken < len(names) {
			p, low := numbered(names[taken])
			if p != prefix || first < 0 {
				break
			}
			high := low
			taken++
			for taken < len(names) && names[taken] == prefix+strconv.Itoa(high+1) {
				high++
				taken++
			}
			if part := strconv.Itoa(low); low == high {
				parts = append(parts, part)
			} else {
				parts = append(parts, part+"-"+strconv.Itoa(high))
			}
		}
		if taken <= 1 {
			words = append(words, names[0])
			taken = 1
		} else {
			words = append(words, prefix+"["+strings.Join(parts, ",")+"]")
		}
		names = names[taken:]
	}
	return strings.Join(words, ", ")
}
