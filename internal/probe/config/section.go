package config

import (
	"encoding/json"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/spelling"
)

// reader gathers what there is to say about a file.
type reader struct {
	path     string
	strict   bool // of a format that nobody else has
	sections []*section
	problems []error
	warnings []string
}

// section is an object of the file whose fields are asked for one after the other.
type section struct {
	reader *reader
	path   string // empty for the top
	place  string // what such an object is called: "a rule"
	fields object
	asked  []string // the names of fields that there are
	// refused are the fields of which something has been said that makes all else moot.
	refused map[string]bool
}

func (r *reader) section(path, place string, fields object) *section {
	s := &section{reader: r, path: path, place: place, fields: fields, refused: map[string]bool{}}
	r.sections = append(r.sections, s)
	return s
}

// at is the path of a field.
func (s *section) at(name string) string {
	if s.path == "" {
		return name
	}
	return s.path + "." + name
}

// line is one thing to say about a field, or about the file if there is none.
func (s *section) line(name, format string, args []any) string {
	at := s.path
	if name != "" {
		at = s.at(name)
	}
	if at != "" {
		at += ": "
	}
	return s.reader.path + ": " + at + fmt.Sprintf(format, args...)
}

func (s *section) refuse(name, format string, args ...any) {
	s.refused[name] = true
	s.reader.problems = append(s.reader.problems, problem(s.line(name, format, args)))
}

func (s *section) warn(name, format string, args ...any) {
	s.reader.warnings = append(s.reader.warnings, s.line(name, format, args))
}

// problem is an error that has been put into words.
type problem string

func (p problem) Error() string { return string(p) }

// find asks for a field.
func (s *section) find(name string) (any, bool) {
	s.asked = append(s.asked, name)
	written := 0
	for _, f := range s.fields {
		if strings.EqualFold(f.name, name) {
			written++
		}
	}
	if written > 1 {
		s.warn(name, "there %d times, of which the last one counts; leave one", written)
	}
	return s.fields.get(name)
}

// ask asks for a field of some type. What is of another type is refused, with what
// would be right, and counts as not there.
func ask[T any](s *section, name, right string) (T, bool) {
	value, there := s.find(name)
	typed, ok := value.(T)
	if there && !ok {
		s.refuse(name, "%s is not %s; write %s", brief(value), gist(right), right)
	}
	return typed, there && ok
}

// gist is what would be right without how to write it: "a text".
func gist(right string) string {
	what, _, _ := strings.Cut(right, ",")
	return what
}

const aText = `a text, in quotes`

func (s *section) text(name, otherwise string) string {
	if text, ok := ask[string](s, name, aText); ok {
		return text
	}
	return otherwise
}

// required asks for a text that must not be empty. The example is the way out.
func (s *section) required(name, example string) string {
	text := s.text(name, "")
	if text == "" && !s.refused[name] {
		s.refuse(name, "missing; write %s", example)
	}
	return text
}

// source asks for the name of a monitor. One that has none is called by its file.
func (s *section) source() string {
	name := s.text("source", "")
	if name == "" && !s.refused["source"] {
		base := filepath.Base(s.reader.path)
		if name = strings.TrimSuffix(base, filepath.Ext(base)); name == "" {
			name = base
		}
		s.warn("source", "missing, so that the monitor is called %s; write its name, under which its Events are told", quote(name))
	}
	return name
}

func (s *section) flag(name string, otherwise bool) bool {
	if flag, ok := ask[bool](s, name, "true or false, without quotes"); ok {
		return flag
	}
	return otherwise
}

// number asks for a whole number within bounds.
func (s *section) number(name string, least, most, otherwise int) int {
	const right = "a whole number, without quotes"
	written, ok := ask[json.Number](s, name, right)
	if !ok {
		return otherwise
	}
	number, err := strconv.Atoi(written.String())
	switch {
	case err != nil:
		s.refuse(name, "%s is not %s; write %s", written, gist(right), right)
		return otherwise
	case number < least:
		s.refuse(name, "%d is too small; write at least %d", number, least)
		return otherwise
	case number > most:
		s.refuse(name, "%d is too large; write at most %d", number, most)
		return otherwise
	}
	return number
}

const aDuration = `a duration, with its unit and in quotes, such as "90s", "5m" or "1h30m"`

// duration asks for a duration. An empty one is none, and so the other is taken.
func (s *section) duration(name string, otherwise time.Duration) time.Duration {
	text, ok := ask[string](s, name, aDuration)
	if !ok || text == "" {
		return otherwise
	}
	duration, err := time.ParseDuration(text)
	switch {
	case err != nil:
		s.refuse(name, "%s is not %s; write %s", quote(text), gist(aDuration), aDuration)
		return otherwise
	case duration < 0:
		s.refuse(name, "%s is negative; write %s", quote(text), aDuration)
		return otherwise
	}
	return duration
}

// durationOrNone asks for a duration of which a negative one is none: the old agent
// takes it, though it means nothing.
func (s *section) durationOrNone(name string) time.Duration {
	value, _ := s.fields.get(name)
	text, _ := value.(string)
	if duration, err := time.ParseDuration(text); err == nil && duration < 0 {
		s.find(name)
		s.warn(name, "%s is negative, and is taken for none; write %s", quote(text), aDuration)
		return 0
	}
	return s.duration(name, 0)
}

// positive asks for a duration that must not be zero.
func (s *section) positive(name string, otherwise time.Duration) time.Duration {
	duration := s.duration(name, otherwise)
	if duration == 0 && otherwise != 0 {
		value, _ := s.fields.get(name)
		s.refuse(name, "%s is no time at all; write %s", brief(value), aDuration)
		return otherwise
	}
	return duration
}

// texts asks for a list of texts.
func (s *section) texts(name string) []string {
	values, _ := ask[[]any](s, name, "a list of texts, such as [\"a\", \"b\"]")
	var texts []string
	for i, value := range values {
		text, ok := value.(string)
		if !ok && value != nil {
			s.refuse(fmt.Sprintf("%s[%d]", name, i), "%s is not %s; write %s", brief(value), gist(aText), aText)
			continue
		}
		texts = append(texts, text) // null is an empty one, as it is to the old agent
	}
	return texts
}

// textsByName asks for an object of texts. Unlike fields, their names have their
// letter case.
func (s *section) textsByName(name string) map[string]string {
	fields, ok := ask[object](s, name, `an object of texts, such as {"a": "b"}`)
	if !ok {
		return nil
	}
	texts := make(map[string]string, len(fields))
	for _, f := range fields {
		text, ok := f.value.(string)
		if !ok && f.value != nil {
			s.refuse(name+"."+quoteName(f.name), "%s is not %s; write %s", brief(f.value), gist(aText), aText)
			continue
		}
		texts[f.name] = text
	}
	return texts
}

// section asks for an object; without one, it has no fields.
func (s *section) section(name, place string) *section {
	fields, _ := ask[object](s, name, "an object, such as {...}")
	return s.reader.section(s.at(name), place, fields)
}

// each asks for a list of objects, and hands out one after the other.
func (s *section) each(name, place string) iter.Seq[*section] {
	values, _ := ask[[]any](s, name, "a list of objects, such as [{...}, {...}]")
	return func(yield func(*section) bool) {
		for i, value := range values {
			at := fmt.Sprintf("%s[%d]", name, i)
			fields, ok := value.(object)
			if !ok {
				s.refuse(at, "%s is not an object; write {...}", brief(value))
				continue
			}
			if !yield(s.reader.section(s.at(at), place, fields)) {
				return
			}
		}
	}
}

// has says whether there is a field, whatever it holds.
func (s *section) has(name string) bool {
	_, ok := s.fields.get(name)
	return ok
}

// warnOfSlips warns of fields that nobody has asked for and that look like one that
// somebody did. Where the format is ours it warns of all: what the old agent passes over
// does not excuse them.
func (r *reader) warnOfSlips() {
	places := map[string][]string{} // by the name of a field
	for _, s := range r.sections {
		for _, name := range s.asked {
			if !slices.Contains(places[name], s.place) {
				places[name] = append(places[name], s.place)
			}
		}
	}
	for _, s := range r.sections {
		for _, f := range s.fields {
			if !s.warnOfSlip(f.name, places) && r.strict {
				s.warn(quoteName(f.name), "not known and ignored; take it away")
			}
		}
	}
}

// warnOfSlip says whether there is no more to say of a field.
func (s *section) warnOfSlip(written string, places map[string][]string) (done bool) {
	if slices.ContainsFunc(s.asked, func(name string) bool { return strings.EqualFold(name, written) }) {
		return true
	}
	if meant, ok := spelling.Nearest(written, s.asked); ok {
		s.warn(quoteName(written), "not known and ignored; did you mean %s?", meant)
		return true
	}
	for name, of := range places {
		if strings.EqualFold(name, written) {
			s.warn(quoteName(written), "ignored here; it is a field of %s", strings.Join(of, " and of "))
			return true
		}
	}
	return s.refused[quoteName(written)]
}

// quoteName writes the name of a field that may be anything.
func quoteName(name string) string {
	for _, r := range name {
		if r <= ' ' || r == '.' || r == ':' || r > '~' {
			return quote(name)
		}
	}
	return name
}
