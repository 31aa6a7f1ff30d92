package main

import (
	"bytes"
	"strings"
	"testing"
)

// The story is what a newcomer sees first, so it is played whole.
func TestTheStoryIsToldToItsEnd(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out, true); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"ready after", "KernelDeadlock:NoExecute", "instead of NoExecute", "Ready=Unknown", "that was the story"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the story does not say %q:\n%s", want, out.String())
		}
	}
}
