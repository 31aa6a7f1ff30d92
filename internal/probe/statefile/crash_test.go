package statefile

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// inBubble runs a function with its own clock and passes on its panic, because rapid ends
// a run with a panic.
func inBubble(t *testing.T, run func()) {
	t.Helper()
	var ended any
	synctest.Test(t, func(*testing.T) {
		defer func() { ended = recover() }()
		run()
	})
	if ended != nil {
		panic(ended)
	}
}

// After a crash at any moment, the store finds a state that was complete at some moment.
// It is not older than the last state that was surely written, and it is never partial.
func TestStateAfterACrashIsComplete(t *testing.T) {
	crashes, recalled, complaints := 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		inBubble(t, func() {
			monitors := []string{"kernel", "files"}
			choose := func(options int) int { return rapid.IntRange(0, options-1).Draw(rt, "choice") }

			var logged bytes.Buffer
			disk := newFakeDisk()
			var m *Store
			defer func() { _ = m.Close() }()
			// Each moment is what the monitors had stored. The states from floor on may be found.
			moments, floor := []map[string]string{{}}, 0

			start := func() {
				m = testkit.Value(open(disk, "boot", slog.New(slog.NewTextHandler(&logged, nil)))).Must(rt)
				found := map[string]string{}
				for _, key := range m.Monitors() {
					entry, _ := m.Monitor(key)
					testkit.MustBeSame(rt, entry.Position, entry.State, "%s: the position and the state belong to the same moment", key)
					found[key] = string(entry.State)
				}
				at := slices.IndexFunc(moments[floor:], func(moment map[string]string) bool { return maps.Equal(moment, found) })
				if at < 0 {
					rt.Fatalf("found %v, want one of %v", found, moments[floor:])
				}
				if len(found) > 0 {
					recalled++
				}
				torn, _ := disk.Read(badFile)
				testkit.Require(rt, torn == nil, "there was a partial state: %s", torn)
				moments, floor = []map[string]string{found}, 0
				disk.cutPower(rapid.IntRange(1, 60).Draw(rt, "steps to the crash"))
			}
			written := func() {
				synctest.Wait()
				if _, _, dead := disk.tally(); !dead && m.Err() == nil {
					floor = len(moments) - 1
				}
			}
			crash := func() {
				crashes++
				disk.cutPower(0)
				_ = m.Close() // has no effect any more, but ends the goroutine
				disk = disk.after(choose)
				start()
			}
			start()
			count, full := 0, false
			rt.Repeat(map[string]func(*rapid.T){
				"keep": func(rt *rapid.T) {
					count++
					key, value := monitors[choose(len(monitors))], strconv.Itoa(count)
					urgent := rapid.Bool().Draw(rt, "urgent")
					moment := maps.Clone(moments[len(moments)-1])
					moment[key] = value
					moments = append(moments, moment)
					m.Keep(key, Entry{Position: []byte(value), State: []byte(value)}, urgent)
					if urgent && rapid.Bool().Draw(rt, "wait for it") {
						wait := urgentInterval
						if m.Err() != nil {
							wait = writeInterval
						}
						pass(wait)
						written()
					}
				},
				"calm": func(*rapid.T) {
					pass(writeInterval)
					written()
				},
				"moment": func(rt *rapid.T) {
					pass(time.Duration(rapid.IntRange(0, 1000).Draw(rt, "ms")) * time.Millisecond)
				},
				"flush": func(*rapid.T) {
					if m.Flush() == nil {
						written()
					}
				},
				"trouble": func(*rapid.T) {
					full = !full
					if full {
						disk.failWith(errors.New("no space left"))
					} else {
						disk.failWith(nil)
					}
				},
				"restart": func(rt *rapid.T) {
					if m.Close() == nil {
						written()
					}
					disk = disk.after(choose)
					start()
				},
				"crash": func(*rapid.T) { crash() },
				"": func(*rapid.T) {
					synctest.Wait()
					if _, _, dead := disk.tally(); dead {
						crash()
					}
				},
			})
			complaints += bytes.Count(logged.Bytes(), []byte("\n"))
		})
	})
	t.Logf("%d crashes, %d states recalled, %d lines of complaint", crashes, recalled, complaints)
	testkit.Check(t, crashes != 0 && recalled != 0 && complaints != 0, "the test has not crashed, restored or logged anything")
}
