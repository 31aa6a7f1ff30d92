package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestWrapKeepsLinesShortAndAligned(t *testing.T) {
	text := strings.Repeat("word ", 40) + strings.Repeat("x", 2*width)
	head := "    14 ms  worker-0001     "
	lines := strings.Split(wrap(head, text), "\n")
	if len(lines) < 4 {
		t.Fatalf("%d lines, want several:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	for i, line := range lines {
		switch {
		case i > 0 && !strings.HasPrefix(line, strings.Repeat(" ", len(head))+"w") && !strings.HasPrefix(line, strings.Repeat(" ", len(head))+"x"):
			t.Errorf("line %d is not aligned: %q", i, line)
		case len(line) > width && strings.Contains(strings.TrimSpace(line[len(head):]), " "):
			t.Errorf("line %d is too long: %q", i, line)
		}
	}
	if got, want := strings.Join(strings.Fields(strings.Join(lines, " ")), " "), strings.Join(strings.Fields(head+text), " "); got != want {
		t.Errorf("words were lost:\n%s\nwant\n%s", got, want)
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ms", 14*time.Millisecond + 300*time.Microsecond: "14 ms", 999 * time.Millisecond: "999 ms", 1240 * time.Millisecond: "1.2 s", 75 * time.Second: "75.0 s",
	} {
		if got := span(d); got != want {
			t.Errorf("%v is told as %q, want %q", d, got, want)
		}
	}
}

func TestList(t *testing.T) {
	for want, names := range map[string][]string{"": nil, "a": {"a"}, "a and b": {"a", "b"}, "a, b and c": {"a", "b", "c"}} {
		if got := list(names); got != want {
			t.Errorf("%v is told as %q, want %q", names, got, want)
		}
	}
}

func TestTeller(t *testing.T) {
	t.Run("is_silent_before_the_first_scene", func(t *testing.T) {
		var out strings.Builder
		newTeller(&out).line("worker-0001", "taint")
		if out.String() != "" {
			t.Errorf("it said %q", out.String())
		}
	})
	t.Run("says_of_many_nodes_once_what_they_have_in_common", func(t *testing.T) {
		var out strings.Builder
		tell := newTeller(&out)
		for _, scene := range []string{"The first.", "The second."} {
			tell.open(scene)
			tell.once("worker-0001", "taint")
			tell.once("worker-0002", "taint")
		}
		if got := strings.Count(out.String(), "taint"); got != 2 || strings.Contains(out.String(), "worker-0002") {
			t.Errorf("it said so %d times:\n%s", got, out.String())
		}
		tell.letGo()
		tell.once("worker-0002", "taint")
		if !strings.Contains(out.String(), "worker-0002") {
			t.Errorf("it does not say what others do:\n%s", out.String())
		}
	})
	t.Run("shows_what_a_command_prints_and_breaks_only_what_is_too_long", func(t *testing.T) {
		var out strings.Builder
		newTeller(&out).output("NAME   AGE\na      1s   \n" + strings.Repeat("word ", 30) + "\n" + strings.Repeat("x", width) + "\n")
		lines := strings.Split(out.String(), "\n")
		want := []string{"", "      NAME   AGE", "      a      1s"}
		if !slices.Equal(lines[:3], want) {
			t.Errorf("the table is shown as %q, want %q", lines[:3], want)
		}
		if len(lines) != 8 || !strings.HasPrefix(lines[4], outputIndent+outputIndent+"word") || len(lines[3]) > width ||
			strings.Count(lines[3]+lines[4], "word") != 30 || lines[5] != outputIndent+strings.Repeat("x", width) {
			t.Errorf("it shows %q", lines[3:])
		}
	})
	t.Run("gives_a_reason_once_in_a_scene", func(t *testing.T) {
		var out strings.Builder
		tell := newTeller(&out)
		tell.open("The first.")
		tell.quote("worker-0001", "Tainted", "words")
		tell.quote("worker-0002", "Tainted", "words")
		tell.open("The second.")
		tell.quote("worker-0003", "Tainted", "words")
		if got := strings.Count(out.String(), "Tainted: words"); got != 2 || strings.Contains(out.String(), "worker-0002") {
			t.Errorf("it gave the reason %d times:\n%s", got, out.String())
		}
	})
	t.Run("gives_every_reason_when_others_act_but_none_twice", func(t *testing.T) {
		var out strings.Builder
		tell := newTeller(&out)
		tell.letGo()
		for _, reason := range []string{"Tainted", "Tainted", "Recovered", "Tainted"} {
			tell.quote("worker-0001", reason, "words")
		}
		if got := strings.Count(out.String(), "Tainted: words"); got != 2 {
			t.Errorf("it gave the reason %d times:\n%s", got, out.String())
		}
	})
}
