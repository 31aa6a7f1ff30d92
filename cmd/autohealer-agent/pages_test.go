package main

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestOnlyUnmodifiedMappingsAreReleased(t *testing.T) {
	const table = `00400000-00a2d000 r-xp 00000000 fe:00 10642682                           /autohealer-agent
Size:               6324 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
00a2d000-00b00000 r--p 0062d000 fe:00 10642682                           /autohealer-agent
Rss:                  60 kB
Anonymous:             4 kB
00b00000-010ee000 r--p 0062d000 fe:00 10642682                           /autohealer-agent
Anonymous:             0 kB
010ee000-01160000 rw-p 00cee000 fe:00 10642682                           /autohealer-agent
Anonymous:             0 kB
01160000-031aa000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f7693b00000-7f7693b01000 r--p 00000000 fe:00 7                          /lib/other
Anonymous:             0 kB
7ffd1a9e8000-7ffd1a9ec000 r--p 00000000 00:00 0                          [vvar]
Anonymous:             0 kB
`
	want := []mapping{{0x400000, 0xa2d000}, {0xb00000, 0x10ee000}}
	if diff := cmp.Diff(want, unmodifiedMappings(strings.NewReader(table), "/autohealer-agent"), cmp.AllowUnexported(mapping{})); diff != "" {
		t.Error(diff)
	}
	for _, odd := range []string{"", "\n", "Anonymous: 0 kB\n", "1-\nAnonymous: 0 kB\n", "0-0\n"} {
		if got := unmodifiedMappings(strings.NewReader(odd), ""); len(got) > 0 {
			t.Errorf("%q: %v is released", odd, got)
		}
	}
}

func TestProgramRunsAfterReleasingPages(t *testing.T) {
	mapped := func() int {
		text, err := os.ReadFile("/proc/self/status")
		testkit.Must(t, err)
		_, after, _ := strings.Cut(string(text), "RssFile:")
		kilobytes, err := strconv.Atoi(strings.Fields(after)[0])
		testkit.Must(t, err)
		return kilobytes
	}
	before := mapped()
	testkit.Must(t, releaseProgramPages())
	after := mapped()
	if t.Logf("of %d kB of the program %d are left", before, after); after >= before {
		t.Error("nothing was released")
	}
}
