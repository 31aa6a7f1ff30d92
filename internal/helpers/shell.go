package helpers

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// noShell is the way out for whoever needs more than this.
const noShell = "this image has no shell: name the program and its flags in command: and args:, and run scripts in an image that has one"

// shell is what is left of a shell: charts of node-problem-detector start it by
// sh -c "exec /node-problem-detector …". It becomes that program.
func shell(n node, args []string, out io.Writer) int {
	if len(args) < 2 || args[0] != "-c" {
		return say(out, unknown, "sh %s: %s", strings.Join(args, " "), noShell)
	}
	words, err := shellWords(args[1], n.getenv)
	if err == nil && (len(words) < 2 || words[0] != "exec" || !strings.HasPrefix(words[1], "/")) {
		err = errors.New("only exec and a program with its whole path are known")
	}
	if err == nil {
		err = fmt.Errorf("becoming %s: %w", words[1], n.become(words[1], words[1:], os.Environ()))
	}
	return say(out, unknown, "sh -c %s: %v; %s", args[1], err, noShell)
}

const (
	blanks = " \t\n"
	// special is what a shell may read as more than itself, and this one does not read.
	special = "|&;<>()`*?[]#~{}!"
	// escapable is what a backslash within double quotes takes the meaning from.
	escapable = "$`\"\\"
)

// shellWords takes one simple command apart as a shell does, with quotes, backslashes and
// variables. What it does not know is an error, never a guess.
func shellWords(command string, getenv func(string) string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord := false // a word may be empty: ''
	for rest := command; rest != ""; {
		c := rest[0]
		rest = rest[1:]
		switch {
		case strings.IndexByte(blanks, c) >= 0:
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
			if c == '\n' && len(words) > 0 && strings.Trim(rest, blanks) != "" {
				return nil, errors.New(`a second command is not known: a line that goes on ends with \`)
			}
		case c == '\'':
			text, after, closed := strings.Cut(rest, "'")
			if !closed {
				return nil, errors.New("a ' has no second one")
			}
			word.WriteString(text)
			inWord, rest = true, after
		case c == '"':
			text, after, err := quoted(rest, getenv)
			if err != nil {
				return nil, err
			}
			word.WriteString(text)
			inWord, rest = true, after
		case c == '\\' && rest == "":
			return nil, errors.New(`nothing follows the last \`)
		case c == '\\':
			if rest[0] != '\n' { // with that the line goes on
				word.WriteByte(rest[0])
				inWord = true
			}
			rest = rest[1:]
		case c == '$':
			value, after, err := variable(rest, getenv)
			if err != nil {
				return nil, err
			}
			if strings.ContainsAny(value, blanks+"*?[\\") {
				return nil, fmt.Errorf("the value %q of a variable would be taken apart: put double quotes around it", value)
			}
			word.WriteString(value)
			inWord, rest = inWord || value != "", after
		case strings.IndexByte(special, c) >= 0:
			return nil, fmt.Errorf("%q is not known", c)
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

// quoted reads what is between double quotes, after the first of them.
func quoted(text string, getenv func(string) string) (inside, after string, err error) {
	var b strings.Builder
	for text != "" {
		c := text[0]
		text = text[1:]
		switch {
		case c == '"':
			return b.String(), text, nil
		case c == '\\' && text != "" && text[0] == '\n':
			text = text[1:]
		case c == '\\' && text != "" && strings.IndexByte(escapable, text[0]) >= 0:
			b.WriteByte(text[0])
			text = text[1:]
		case c == '$':
			value, rest, err := variable(text, getenv)
			if err != nil {
				return "", "", err
			}
			b.WriteString(value)
			text = rest
		case c == '`':
			return "", "", fmt.Errorf("%q is not known", c)
		default:
			b.WriteByte(c)
		}
	}
	return "", "", errors.New(`a " has no second one`)
}

// variable reads what follows a $: NAME or {NAME}.
func variable(text string, getenv func(string) string) (value, after string, err error) {
	inside, braced := strings.CutPrefix(text, "{")
	n := 0
	for n < len(inside) && isNamePart(inside[n], n == 0) {
		n++
	}
	name, after := inside[:n], inside[n:]
	closed := true
	if braced {
		after, closed = strings.CutPrefix(after, "}")
	}
	if name == "" || !closed {
		return "", "", errors.New("of what begins with $ only names of variables are known")
	}
	return getenv(name), after, nil
}

func isNamePart(c byte, first bool) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || !first && c >= '0' && c <= '9'
}
