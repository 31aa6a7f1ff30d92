package journal

import (
	"testing"

	"github.com/resourcestack/autohealer/internal/format/golden"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestGap(t *testing.T) {
	system, user := id{1}, id{2}
	file := func(sequence id, head, tail uint64) header {
		return header{sequence: sequence, head: head, tail: tail, entries: 1 + tail - head}
	}
	gone := map[id]filePosition{{11}: {Sequence: system}, {12}: {Sequence: user}}
	for name, c := range map[string]struct {
		left []header
		want uint64
	}{
		"nothing is left":                  {nil, 0},
		"the numbers go on":                {[]header{file(system, 101, 110)}, 0},
		"fifty are missing":                {[]header{file(system, 151, 160)}, 50},
		"fifty are missing in each":        {[]header{file(system, 151, 160), file(user, 155, 170)}, 50},
		"another file fills the gap":       {[]header{file(user, 151, 160), file(system, 90, 200)}, 0},
		"another file fills a part of it":  {[]header{file(user, 151, 160), file(system, 121, 200)}, 20},
		"only what was seen is left":       {[]header{file(system, 50, 100)}, 0},
		"a file of another journald":       {[]header{file(id{3}, 5000, 6000)}, 0},
		"the next file has no entries yet": {[]header{{sequence: system, tail: 500}}, 0},
	} {
		testkit.Same(t, gap(100, gone, c.left), c.want, "%s: entries", name)
	}
}

// The agent's state file contains the position. This is version 1 of its format.
func TestStoredFormatIsUnchanged(t *testing.T) {
	golden.Check(t, "testdata/position-v1.json", &position{})
}
