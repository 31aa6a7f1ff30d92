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
		t.Errorf("the text changed:\n%s\nwant\n%s", got, want)
	}
}

func TestFormatDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ms", 14*time.Millisecond + 300*time.Microsecond: "14 ms", 999 * time.Millisecond: "999 ms", 1240 * time.Millisecond: "1.2 s", 75 * time.Second: "75.0 s",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("%v is printed as %q, want %q", d, got, want)
		}
	}
}

func TestJoinNames(t *testing.T) {
	for want, names := range map[string][]string{"": nil, "a": {"a"}, "a and b": {"a", "b"}, "a, b and c": {"a", "b", "c"}} {
		if got := joinNames(names); got != want {
			t.Errorf("%v is printed as %q, want %q", names, got, want)
		}
	}
}

func TestPrinter(t *testing.T) {
	t.Run("prints_nothing_before_the_first_step", func(t *testing.T) {
		var out strings.Builder
		newPrinter(&out).line("worker-0001", "taint")
		if out.String() != "" {
			t.Errorf("it printed %q", out.String())
		}
	})
	t.Run("prints_a_common_text_once_per_step", func(t *testing.T) {
		var out strings.Builder
		printer := newPrinter(&out)
		for _, title := range []string{"The first.", "The second."} {
			printer.startStep(title)
			printer.once("worker-0001", "taint")
			printer.once("worker-0002", "taint")
		}
		if got := strings.Count(out.String(), "taint"); got != 2 || strings.Contains(out.String(), "worker-0002") {
			t.Errorf("it printed the text %d times:\n%s", got, out.String())
		}
		printer.startInteractive()
		printer.once("worker-0002", "taint")
		if !strings.Contains(out.String(), "worker-0002") {
			t.Errorf("it does not print the changes of the interactive mode:\n%s", out.String())
		}
	})
	t.Run("breaks_only_long_lines_of_output", func(t *testing.T) {
		var out strings.Builder
		newPrinter(&out).output("NAME   AGE\na      1s   \n" + strings.Repeat("word ", 30) + "\n" + strings.Repeat("x", width) + "\n")
		lines := strings.Split(out.String(), "\n")
		want := []string{"", "      NAME   AGE", "      a      1s"}
		if !slices.Equal(lines[:3], want) {
			t.Errorf("the table is printed as %q, want %q", lines[:3], want)
		}
		if len(lines) != 8 || !strings.HasPrefix(lines[4], outputIndent+outputIndent+"word") || len(lines[3]) > width ||
			strings.Count(lines[3]+lines[4], "word") != 30 || lines[5] != outputIndent+strings.Repeat("x", width) {
			t.Errorf("it printed %q", lines[3:])
		}
	})
	t.Run("prints_a_reason_once_per_step", func(t *testing.T) {
		var out strings.Builder
		printer := newPrinter(&out)
		printer.startStep("The first.")
		printer.quote("worker-0001", "Tainted", "words")
		printer.quote("worker-0002", "Tainted", "words")
		printer.startStep("The second.")
		printer.quote("worker-0003", "Tainted", "words")
		if got := strings.Count(out.String(), "Tainted: words"); got != 2 || strings.Contains(out.String(), "worker-0002") {
			t.Errorf("it printed the reason %d times:\n%s", got, out.String())
		}
	})
	t.Run("prints_every_new_reason_in_interactive_mode", func(t *testing.T) {
		var out strings.Builder
		printer := newPrinter(&out)
		printer.startInteractive()
		for _, reason := range []string{"Tainted", "Tainted", "Recovered", "Tainted"} {
			printer.quote("worker-0001", reason, "words")
		}
		if got := strings.Count(out.String(), "Tainted: words"); got != 2 {
			t.Errorf("it printed the reason %d times:\n%s", got, out.String())
		}
	})
}
