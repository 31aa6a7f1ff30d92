package config

import (
	"encoding/json"
	"fmt"
	"iter"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/spelling"
)

// reader collects the errors and warnings of a file.
type reader struct {
	path     string
	strict   bool // the format belongs to Autohealer alone
	sections []*section
	problems []error
	warnings []string
}

// section is an object of the file. Its methods read fields and remember which fields exist.
type section struct {
	reader *reader
	path   string // empty for the top
	place  string // the name of the object in messages, for example "a rule"
	fields object
	asked  []string // the names of the known fields
	// refused are the fields that already have an error, so that further errors would be noise.
	refused map[string]bool
}

func (r *reader) section(path, place string, fields object) *section {
	s := &section{reader: r, path: path, place: place, fields: fields, refused: map[string]bool{}}
	r.sections = append(r.sections, s)
	return s
}

// at returns the path of a field.
func (s *section) at(name string) string {
	if s.path == "" {
		return name
	}
	return s.path + "." + name
}

// line formats a message about a field, or about the file if the name is empty.
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

// problem is an error text that is already complete.
type problem string

func (p problem) Error() string { return string(p) }

// find looks up a field.
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

// ask reads a field of type T. A field of another type is refused with a hint and counts as
// missing.
func ask[T any](s *section, name, right string) (T, bool) {
	value, there := s.find(name)
	typed, ok := value.(T)
	if there && !ok {
		s.refuse(name, "%s is not %s; write %s", brief(value), gist(right), right)
	}
	return typed, there && ok
}

// gist returns the hint without its example: "a text".
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

// required reads a text that must not be empty. The message shows the example.
func (s *section) required(name, example string) string {
	text := s.text(name, "")
	if text == "" && !s.refused[name] {
		s.refuse(name, "missing; write %s", example)
	}
	return text
}

// windowsPath matches the paths in the files that node-problem-detector has for Windows.
var windowsPath = regexp.MustCompile(`(?i)^[a-z]:[\\/]|\\|\.(exe|ps1|bat|cmd)$`)

// refuseWindowsPath refuses a path of Windows, for which there is no agent.
func (s *section) refuseWindowsPath(name, path string) bool {
	if strings.HasPrefix(path, "/") || !windowsPath.MatchString(path) {
		return false
	}
	s.refuse(name, "%s is a path of Windows; the agent runs on Linux nodes only; remove the file, and keep node-problem-detector on Windows nodes", quote(path))
	return true
}

// source reads the name of a monitor. The default is the name of its file.
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

// number reads an integer within bounds.
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

const aDuration = `a duration, with its unit and in quotes, for example "90s", "5m" or "1h30m"`

// duration reads a duration. An empty text means the default.
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

// durationOrNone reads a duration. A negative one means none: node-problem-detector accepts it
// without an effect.
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

// positive reads a duration that must not be zero.
func (s *section) positive(name string, otherwise time.Duration) time.Duration {
	duration := s.duration(name, otherwise)
	if duration == 0 && otherwise != 0 {
		value, _ := s.fields.get(name)
		s.refuse(name, "%s is no time at all; write %s", brief(value), aDuration)
		return otherwise
	}
	return duration
}

// texts reads a list of texts.
func (s *section) texts(name string) []string {
	values, _ := ask[[]any](s, name, "a list of texts, for example [\"a\", \"b\"]")
	var texts []string
	for i, value := range values {
		text, ok := value.(string)
		if !ok && value != nil {
			s.refuse(fmt.Sprintf("%s[%d]", name, i), "%s is not %s; write %s", brief(value), gist(aText), aText)
			continue
		}
		texts = append(texts, text) // null is an empty text, as in node-problem-detector
	}
	return texts
}

// textsByName reads an object of texts. Unlike fields, their names are case-sensitive.
func (s *section) textsByName(name string) map[string]string {
	fields, ok := ask[object](s, name, `an object of texts, for example {"a": "b"}`)
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

// section reads an object. A missing object is a section without fields.
func (s *section) section(name, place string) *section {
	fields, _ := ask[object](s, name, "an object, for example {...}")
	return s.reader.section(s.at(name), place, fields)
}

// each reads a list of objects.
func (s *section) each(name, place string) iter.Seq[*section] {
	values, _ := ask[[]any](s, name, "a list of objects, for example [{...}, {...}]")
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

// has returns whether the field exists, whatever its value.
func (s *section) has(name string) bool {
	_, ok := s.fields.get(name)
	return ok
}

// warnOfSlips warns of unknown fields that look like a known field. If the format is Autohealer's
// own, it warns of every unknown field: compatibility with node-problem-detector is no reason to
// ignore them.
func (r *reader) warnOfSlips() {
	places := map[string][]string{} // by field name
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
				s.warn(quoteName(f.name), "not known and ignored; remove it")
			}
		}
	}
}

// warnOfSlip warns of a misspelled field and returns whether it did.
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

// quoteName quotes a field name if necessary.
func quoteName(name string) string {
	for _, r := range name {
		if r <= ' ' || r == '.' || r == ':' || r > '~' {
			return quote(name)
		}
	}
	return name
}
