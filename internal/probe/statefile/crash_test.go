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
)

// inBubble calls a function that has a clock of its own, and passes on its panic, by
// which rapid ends a run.
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

// Whatever dies when, what is found is a state as it was at some moment, no older than
// the last that was surely written, and never a torn one.
func TestWhatIsFoundAfterACrashWasTrueAtSomeMoment(t *testing.T) {
	crashes, recalled, complaints := 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		inBubble(t, func() {
			monitors := []string{"kernel", "files"}
			choose := func(options int) int { return rapid.IntRange(0, options-1).Draw(rt, "choice") }

			var said bytes.Buffer
			disk := newPlatter()
			var m *Store
			defer func() { _ = m.Close() }()
			// Each moment is what the monitors had kept; those from floor on can be found.
			moments, floor := []map[string]string{{}}, 0

			start := func() {
				var err error
				if m, err = open(disk, "boot", slog.New(slog.NewTextHandler(&said, nil))); err != nil {
					rt.Fatal(err)
				}
				found := map[string]string{}
				for _, key := range m.Monitors() {
					entry, _ := m.Monitor(key)
					if !bytes.Equal(entry.Position, entry.State) {
						rt.Fatalf("%s is at %s and in the state of %s", key, entry.Position, entry.State)
					}
					found[key] = string(entry.State)
				}
				at := slices.IndexFunc(moments[floor:], func(moment map[string]string) bool { return maps.Equal(moment, found) })
				if at < 0 {
					rt.Fatalf("found %v, want one of %v", found, moments[floor:])
				}
				if len(found) > 0 {
					recalled++
				}
				if torn, _ := disk.Read(badFile); torn != nil {
					rt.Fatalf("there was a torn state: %s", torn)
				}
				moments, floor = []map[string]string{found}, 0
				disk.unplug(rapid.IntRange(1, 60).Draw(rt, "steps to the crash"))
			}
			written := func() {
				synctest.Wait()
				if _, _, dead := disk.tally(); !dead && m.Err() == nil {
					floor = len(moments) - 1
				}
			}
			crash := func() {
				crashes++
				disk.unplug(0)
				_ = m.Close() // which has no effect any more, but ends the goroutine
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
						wait := brisk
						if m.Err() != nil {
							wait = calm
						}
						pass(wait)
						written()
					}
				},
				"calm": func(*rapid.T) {
					pass(calm)
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
						disk.beset(errors.New("no space left"))
					} else {
						disk.beset(nil)
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
			complaints += bytes.Count(said.Bytes(), []byte("\n"))
		})
	})
	t.Logf("%d crashes, %d states recalled, %d lines of complaint", crashes, recalled, complaints)
	if crashes == 0 || recalled == 0 || complaints == 0 {
		t.Error("this test has looked at nothing")
	}
}
