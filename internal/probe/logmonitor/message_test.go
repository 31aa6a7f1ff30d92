package logmonitor

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestMessage(t *testing.T) {
	long := strings.Repeat("a", maxMessage)
	for name, test := range map[string]struct{ lines, suffix, want string }{
		"contains the lines":              {"one\ntwo", "", "one\ntwo"},
		"ends with the suffix":            {"one", "call us", "one; call us"},
		"keeps percent signs":             {"100%s %d%%", "%v", "100%s %d%%; %v"},
		"replaces invalid UTF-8":          {"a\xffb\xc3", "\xfe", "a\uFFFDb\uFFFD; \uFFFD"},
		"may have the maximum length":     {long, "", long},
		"is truncated if too long":        {long + "b", "", long[:maxMessage-3] + "…"},
		"is truncated between characters": {strings.Repeat("ä", maxMessage), "", strings.Repeat("ä", (maxMessage-3)/2) + "…"},
		"is truncated before the suffix":  {long, "call us", long[:maxMessage-3-len("; call us")] + "…; call us"},
		"is limited with a long suffix":   {"one", long, truncate("…; "+long, maxMessage)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := message([]byte(test.lines), test.suffix); got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

func TestMessageIsShortAndValidUTF8(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		odd := rapid.SampledFrom([]string{"a", "ä", "€", "😀", "\xff", "\n", "%", "", "some words"})
		line := strings.Repeat(odd.Draw(t, "first"), rapid.IntRange(0, maxMessage).Draw(t, "times")) + odd.Draw(t, "last")
		suffix := strings.Repeat(odd.Draw(t, "suffix"), rapid.IntRange(0, 2*maxMessage).Draw(t, "often"))
		got := message([]byte(line), suffix)
		if len(got) > maxMessage || !utf8.ValidString(got) {
			t.Fatalf("%d bytes, valid: %v", len(got), utf8.ValidString(got))
		}
	})
}
