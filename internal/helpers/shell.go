package helpers

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// noShell tells the user what to do instead.
const noShell = "this image has no shell: name the program and its flags in command: and args:, and run scripts in an image that has one"

// shell implements the minimum of a shell: charts of node-problem-detector start it with sh -c
// "exec /node-problem-detector …". It replaces itself with that program.
func shell(n node, args []string, out io.Writer) int {
	if len(args) < 2 || args[0] != "-c" {
		return say(out, notFound, "sh %s: %s", strings.Join(args, " "), noShell)
	}
	words, err := shellWords(args[1], n.getenv)
	if err == nil && (len(words) < 2 || words[0] != "exec" || !strings.HasPrefix(words[1], "/")) {
		err = errors.New("only exec with the absolute path of a program is supported")
	}
	if err == nil {
		err = fmt.Errorf("executing %s: %w", words[1], n.exec(words[1], words[1:], os.Environ()))
	}
	return say(out, notFound, "sh -c %s: %v; %s", args[1], err, noShell)
}

const (
	blanks = " \t\n"
	// special are characters with a special meaning that this shell does not support.
	special = "|&;<>()`*?[]#~{}!"
	// escapable are the characters that a backslash escapes within double quotes.
	escapable = "$`\"\\"
)

// shellWords splits a simple command into words as a shell does, with quotes, backslashes and
// variables. It returns an error for anything that it does not support.
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
				return nil, errors.New(`a second command is not supported: end a line that continues with \`)
			}
		case c == '\'':
			text, after, closed := strings.Cut(rest, "'")
			if !closed {
				return nil, errors.New("a ' is not closed")
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
			if rest[0] != '\n' { // a line continuation
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
				return nil, fmt.Errorf("the value %q of a variable would be split: put it in double quotes", value)
			}
			word.WriteString(value)
			inWord, rest = inWord || value != "", after
		case strings.IndexByte(special, c) >= 0:
			return nil, fmt.Errorf("%q is not supported", c)
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

// quoted reads a text in double quotes, after the opening quote.
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
			return "", "", fmt.Errorf("%q is not supported", c)
		default:
			b.WriteByte(c)
		}
	}
	return "", "", errors.New(`a " is not closed`)
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
		return "", "", errors.New("after $ only the names of variables are supported")
	}
	return getenv(name), after, nil
}

func isNamePart(c byte, first bool) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || !first && c >= '0' && c <= '9'
}
