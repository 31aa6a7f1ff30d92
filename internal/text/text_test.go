package text

import "testing"

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
