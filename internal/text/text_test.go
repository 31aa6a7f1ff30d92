package text

import (
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestShorten(t *testing.T) {
	for _, c := range []struct {
		text     string
		most     int
		ellipsis string
		want     string
	}{
		{"disk", 4, "...", "disk"},
		{"disk is full", 7, "...", "disk..."},
		{"disk is full", 4, "", "disk"},
		{"größer", 4, "", "grö"},
		{"größer", 5, "", "grö"}, // the next character has two bytes
		{"größer", 6, "…", "gr…"},
		{"disk", 2, "...", "..."},
	} {
		if got := Shorten(c.text, c.most, c.ellipsis); got != c.want {
			t.Errorf("%q in %d bytes with %q is %q, want %q", c.text, c.most, c.ellipsis, got, c.want)
		}
	}
}

func TestMessagesAreValidAndShort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "bytes")) + rapid.String().Draw(t, "text")
		most := rapid.IntRange(3, 50).Draw(t, "most")
		got := Message(text, most)
		testkit.Require(t, len(got) <= most && utf8.ValidString(got), "%q has %d bytes", got, len(got))
		testkit.Require(t, len(text) > most || !utf8.ValidString(text) || got == text, "%q became %q", text, got)
	})
}
