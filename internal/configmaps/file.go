package configmaps

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
)

// fileType is the type field of a file of sets.
const fileType = "ConditionSets"

// setFileLine matches a line that identifies an unreadable file as a file of sets.
var setFileLine = regexp.MustCompile(`(?im)^[\s{]*["']?(type["']?\s*:\s*["']?ConditionSets?\b|conditionSets["']?\s*:)`)

// maybeSetFile matches every file of sets, unless it is written with escapes. It avoids parsing
// other files in a ConfigMap, which would cost more than all sets.
var maybeSetFile = regexp.MustCompile(`(?i)conditionset|\\`)

// reader reads the keys of one ConfigMap, one after the other.
type reader struct {
	from     *corev1.ConfigMap
	key      string // the current key
	sets     []Set
	problems LineErrors
}

func (r *reader) refuse(line int, format string, args ...any) {
	r.problems = append(r.problems, LineError{Key: r.key, Line: line, Text: fmt.Sprintf(format, args...)})
}

// open reports whether a key holds a file of sets, and returns its root. If the file is
// unreadable, open records the error and returns a nil root.
func (r *reader) open(key, text string) (isOurs bool, root *yaml.Node) {
	r.key = key
	if len(text) > maxBytes { // the caller reports it if it is a file of sets
		return setFileLine.MatchString(text), nil
	}
	if !maybeSetFile.MatchString(text) {
		return false, nil
	}
	documents, linesRead, err := parse(text)
	if err != nil {
		if isOurs = setFileLine.MatchString(text); isOurs {
			line, what := locate(text, err, linesRead)
			r.refuse(line, "this is not YAML: %s", what)
		}
		return isOurs, nil
	}
	for _, document := range documents {
		isOurs = isOurs || looksLikeSets(document)
	}
	switch {
	case !isOurs:
		return false, nil
	case len(documents) > 1:
		r.refuse(documents[1].Line, "a second document begins here: put all sets into one list, or into a key of their own")
		return true, nil
	}
	return true, documents[0]
}

// looksLikeSets reports whether a document was meant to hold sets.
func looksLikeSets(document *yaml.Node) bool {
	if document.Kind != yaml.MappingNode {
		return false
	}
	for i := 0; i+1 < len(document.Content); i += 2 {
		key, value := document.Content[i], document.Content[i+1]
		if strings.EqualFold(key.Value, "conditionSets") {
			return true
		}
		if strings.EqualFold(key.Value, "type") && value.Kind == yaml.ScalarNode &&
			strings.EqualFold(strings.TrimRight(value.Value, "sS"), strings.TrimRight(fileType, "s")) {
			return true
		}
	}
	return false
}

// parse returns the documents of a text that are not empty, and how many lines the parser
// has read. It does not expand aliases, so the result cannot grow.
func parse(text string) (documents []*yaml.Node, linesRead int, err error) {
	lines := lineReader{rest: text}
	// The text is user input. A panic in the library must not stop the controller, because
	// it would panic again after every restart.
	defer func() {
		if stumbled := recover(); stumbled != nil {
			documents, linesRead, err = nil, lines.read, fmt.Errorf("it cannot be parsed: %v", stumbled)
		}
	}()
	decoder := yaml.NewDecoder(&lines)
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return documents, lines.read, nil
		}
		if err != nil {
			return nil, lines.read, err
		}
		if len(document.Content) == 1 && !isNull(document.Content[0]) {
			documents = append(documents, document.Content[0])
		}
	}
}

// lineReader returns a text line by line, to record how many lines the parser has
// requested.
type lineReader struct {
	rest    string
	read    int
	midLine bool
}

// Read returns the rest of the current line.
func (r *lineReader) Read(p []byte) (n int, err error) {
	if r.rest == "" {
		return 0, io.EOF
	}
	if !r.midLine {
		r.read++
	}
	line := len(r.rest)
	if end := strings.IndexByte(r.rest, '\n'); end >= 0 {
		line = end + 1
	}
	n = copy(p, r.rest[:line])
	r.rest, r.midLine = r.rest[n:], n < line
	return n, nil
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// libraryLine matches the start of the library's errors.
var libraryLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

const (
	// nearLines is how many lines above the parser's position the search looks first.
	nearLines = 5
	// maxConstructLines is how many more lines a construct over several lines gets to end.
	maxConstructLines = 20
	// maxSearchBytes is how many bytes the search may parse. A text that needs more is not
	// written by hand, and is reported with the library's own line.
	maxSearchBytes = 8 * maxBytes
)

// locate returns the line that makes a text invalid YAML, and what is wrong with it. The
// library's own line is often that of the start of the enclosing block. blame returns the
// first line that breaks the text: all lines before it parse, and no number of further lines
// makes it parse again.
func locate(text string, err error, linesRead int) (line int, what string) {
	said := libraryLine.FindStringSubmatch(err.Error())
	what = strings.TrimPrefix(err.Error(), said[0])
	s := search{lines: strings.SplitAfter(text, "\n"), left: maxSearchBytes}
	hint, _ := strconv.Atoi(said[1]) // 0 if the error has no line
	linesRead = min(linesRead, len(s.lines))
	line = 1 + s.lastReadable(linesRead, hint)
	if s.left < 0 {
		line = min(max(1, hint), linesRead)
	}
	if blamed := s.lines[line-1]; strings.Contains(blamed[:len(blamed)-len(strings.TrimLeft(blamed, " \t"))], "\t") {
		what = "there is a tab in the indentation, where YAML wants spaces"
	}
	return line, what
}

// search finds the longest beginning of a text that parses.
type search struct {
	lines []string
	left  int // bytes that may still be parsed; the search fails below zero
}

func (s *search) isReadable(n int) bool {
	beginning := strings.Join(s.lines[:n], "")
	if s.left -= len(beginning); s.left < 0 {
		return false
	}
	_, _, err := parse(beginning)
	return err == nil
}

// lastReadable returns the highest number of lines that parse, below bad. The library has
// read no further, so later lines do not matter. It looks near bad first, and then at the
// line of the library's error.
func (s *search) lastReadable(bad, hint int) int {
	for range nearLines {
		if bad--; bad <= 0 || s.isReadable(bad) {
			return max(0, bad)
		}
	}
	for at := max(0, hint-1); at < min(bad, hint+1); at++ { // hint counts from 0 or from 1
		if s.isReadable(at) && !s.isReadable(at+1) {
			return at
		}
	}
	return s.lastReadableFar(bad)
}

// lastReadableFar searches upwards in growing steps, for an unclosed construct.
func (s *search) lastReadableFar(bad int) int {
	last, good := bad, 0
	for gap := 2; bad > gap && good == 0; gap *= 2 {
		if s.isReadable(bad - gap) {
			good = bad - gap
		} else {
			bad -= gap
		}
	}
	for {
		for bad-good > 1 {
			if middle := (good + bad) / 2; s.isReadable(middle) {
				good = middle
			} else {
				bad = middle
			}
		}
		next := min(last-1, good+maxConstructLines)
		for next > good+1 && s.left >= 0 && !s.isReadable(next) {
			next--
		}
		if next <= good+1 || s.left < 0 {
			return good
		}
		good, bad = next, last // the construct was only incomplete
	}
}
