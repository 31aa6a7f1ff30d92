package dialect

import (
	"strings"

	"github.com/resourcestack/autohealer/internal/taintkey"
)

const (
	maxNameLength   = 63  // of the part after the slash
	maxPrefixLength = 253 // of the part before the slash
)

// taintKey parses a taint key. It must be a qualified name that the API server accepts, and
// must not be reserved for another component.
func (f *fields) taintKey(path, key string) string {
	const example = "like example.com/KernelDeadlock"
	owner, reserved := taintkey.Owner(key)
	prefix, name, prefixed := strings.Cut(key, "/")
	if !prefixed {
		prefix, name = "", key
	}
	switch {
	case key == "":
		f.fail(path, key, "a set needs a taint key "+example)
	case strings.Contains(name, "/"):
		f.fail(path, key, "has more than one slash; want a prefix and a name "+example)
	case prefixed && !isDomain(prefix):
		f.fail(path, key, "the part before the slash must be a domain in small letters, digits, dashes and dots, of at most 253 characters, "+example)
	case !isName(name):
		f.fail(path, key, "the name of the key must be letters, digits, dashes, underscores and dots that begin and end with a letter or digit, of at most 63 characters, "+example)
	case reserved:
		f.fail(path, key, "reserved for "+owner+" itself, which places and removes such taints; want a key in a domain of your own, "+example)
	}
	return key
}

// isQualifiedName says whether s is a name, or a domain, a slash and a name.
func isQualifiedName(s string) bool {
	prefix, name, prefixed := strings.Cut(s, "/")
	if !prefixed {
		return isName(s)
	}
	return isDomain(prefix) && isName(name)
}

// isName says whether s can be the name part of a qualified name.
func isName(s string) bool {
	return isWord(s, maxNameLength, func(b byte) bool {
		return isLowerOrDigit(b) || 'A' <= b && b <= 'Z'
	}, "-_.")
}

// isDomain says whether s can be the prefix of a qualified name.
func isDomain(s string) bool {
	if len(s) > maxPrefixLength {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !isWord(label, maxPrefixLength, isLowerOrDigit, "-") {
			return false
		}
	}
	return true
}

// isWord says whether s has only the letters, and the marks except at its ends.
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

func isLowerOrDigit(b byte) bool { return 'a' <= b && b <= 'z' || '0' <= b && b <= '9' }
