package configmaps

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
)

// fileType is what a file of sets says it is.
const fileType = "ConditionSets"

// ourLine is a line by which a file of sets is known that cannot be read.
var ourLine = regexp.MustCompile(`(?im)^[\s{]*["']?(type["']?\s*:\s*["']?ConditionSets?\b|conditionSets["']?\s*:)`)

// reader reads the keys of one ConfigMap, one after the other.
type reader struct {
	from     *corev1.ConfigMap
	key      string // that is being read
	sets     []Set
	problems LineErrors
}

func (r *reader) refuse(line int, format string, args ...any) {
	r.problems = append(r.problems, LineError{Key: r.key, Line: line, Text: fmt.Sprintf(format, args...)})
}

// open finds out whether a key holds a file of sets, and returns what it says;
// nothing if that cannot be read, which has been told then.
func (r *reader) open(key, text string) (isOurs bool, root *yaml.Node) {
	r.key = key
	if len(text) > maxBytes { // told by the caller if it is ours
		return ourLine.MatchString(text), nil
	}
	documents, err := parse(text)
	if err != nil {
		if isOurs = ourLine.MatchString(text); isOurs {
			line, what := blame(text, err)
			r.refuse(line, "this is not YAML: %s", what)
		}
		return isOurs, nil
	}
	for _, document := range documents {
		isOurs = isOurs || isAbout(document)
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

// isAbout says whether a document was meant to hold sets.
func isAbout(document *yaml.Node) bool {
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

// parse returns the documents of a text that are not empty. Aliases stay what
// they are, so that nothing grows.
func parse(text string) (documents []*yaml.Node, err error) {
	// The text is anybody's, and a library that stumbles over it must not take the
	// controller with it: it would stumble again after every restart.
	defer func() {
		if stumbled := recover(); stumbled != nil {
			documents, err = nil, fmt.Errorf("it cannot be parsed: %v", stumbled)
		}
	}()
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, err
		}
		if len(document.Content) == 1 && !isNull(document.Content[0]) {
			documents = append(documents, document.Content[0])
		}
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// libraryLine is how the library begins an error.
var libraryLine = regexp.MustCompile(`^yaml: (line \d+: )?`)

// blame returns the line that keeps a text from being YAML, and what is wrong with
// it. The library's own line is often that at which the surrounding block begins.
// What is wanted is the first line with which the text has become hopeless: all
// before it can be read, and with it and however much more it cannot.
func blame(text string, err error) (line int, what string) {
	what = libraryLine.ReplaceAllString(err.Error(), "")
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]; strings.Contains(indent, "\t") && strings.TrimSpace(line) != "" {
			if _, err := parse(strings.Join(lines[:i], "")); err == nil {
				return i + 1, "there is a tab in the indentation, where YAML wants spaces"
			}
		}
	}
	isReadable := func(n int) bool {
		_, err := parse(strings.Join(lines[:n], ""))
		return err == nil
	}
	// Something that spans lines is given so many to end, fewer in a long text: this
	// is for people, who have not written that.
	farthest := min(20, 1+(maxBytes>>1)/(1+len(text)))
	good, bad := 0, len(lines)
	for {
		for bad-good > 1 {
			if middle := (good + bad) / 2; isReadable(middle) {
				good = middle
			} else {
				bad = middle
			}
		}
		again := false
		for n := min(len(lines)-1, good+farthest); n > good+1; n-- {
			if isReadable(n) { // it was only not complete
				good, bad, again = n, len(lines), true
				break
			}
		}
		if !again {
			return good + 1, what
		}
	}
}
