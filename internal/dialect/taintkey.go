package dialect

import (
	"strings"

	"github.com/resourcestack/autohealer/internal/taintkey"
)

const (
	longestName   = 63  // of the part after the slash
	longestPrefix = 253 // of the part before it
)

// taintKey reads the key of a taint: a qualified name as the API server demands
// it, so that what compiles can be written to a node, and one that nobody else
// keeps.
func (f *fields) taintKey(path, key string) string {
	const example = "such as example.com/KernelDeadlock"
	owner, reserved := taintkey.Owner(key)
	prefix, name, prefixed := strings.Cut(key, "/")
	if !prefixed {
		prefix, name = "", key
	}
	switch {
	case key == "":
		f.refuse(path, key, "a set needs a taint key "+example)
	case strings.Contains(name, "/"):
		f.refuse(path, key, "has more than one slash; want a prefix and a name "+example)
	case prefixed && !isDomain(prefix):
		f.refuse(path, key, "the part before the slash must be a domain in small letters, digits, dashes and dots, of at most 253 characters, "+example)
	case !isName(name):
		f.refuse(path, key, "the name of the key must be letters, digits, dashes, underscores and dots that begin and end with a letter or digit, of at most 63 characters, "+example)
	case reserved:
		f.refuse(path, key, "reserved for "+owner+" itself, which places and removes such taints; want a key in a domain of your own, "+example)
	}
	return key
}

// isName says whether s can be the name part of a qualified name.
func isName(s string) bool {
	return isWord(s, longestName, func(b byte) bool {
		return isSmallOrDigit(b) || 'A' <= b && b <= 'Z'
	}, "-_.")
}

// isDomain says whether s can be the prefix of a qualified name.
func isDomain(s string) bool {
	if len(s) > longestPrefix {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !isWord(label, longestPrefix, isSmallOrDigit, "-") {
			return false
		}
	}
	return true
}

// isWord says whether s is made of the letters, and of the marks save at its
// ends.
func isWord(s string, longest int, letter func(byte) bool, marks string) bool {
	if s == "" || len(s) > longest || !letter(s[0]) || !letter(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if !letter(s[i]) && strings.IndexByte(marks, s[i]) < 0 {
			return false
		}
	}
	return true
}

func isSmallOrDigit(b byte) bool { return 'a' <= b && b <= 'z' || '0' <= b && b <= '9' }
