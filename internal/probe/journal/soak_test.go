package journal_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/journal"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestRandomSoakReadsEveryEntryOnce runs writes, rotations, restarts of journald and of
// the reader, kills, flushes and vacuuming in random order. JOURNAL_SOAK=steps makes it
// longer; JOURNAL_SEED=seed changes the order.
func TestRandomSoakReadsEveryEntryOnce(t *testing.T) {
	t.Parallel()
	steps, seed := fromEnvironment(t, "JOURNAL_SOAK", 60), fromEnvironment(t, "JOURNAL_SEED", 1)
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	j := startJournald(t, "Storage=auto\nReadKMsg=no")
	config := journal.Config{Identifier: "kubelet"}
	reader := testkit.Value(journal.OpenIn(config, j.volatile(), j.persistent())).Must(t)
	f := &follower{t: t, reader: reader}
	defer func() { _ = f.reader.Close() }()

	var want []string
	isFlushed, restarts, happened := false, 0, map[string]int{}
	for step := range steps {
		var what string
		switch dice := random.IntN(20); {
		case dice < 9:
			what = "write"
			for range random.IntN(200) {
				m := fmt.Sprintf("step %d message %d", step, len(want))
				j.sayAs(uint32(random.IntN(3)*1000), "kubelet", m)
				j.say("other", m)
				want = append(want, m)
			}
		case dice < 12:
			what = "rotate"
			j.rotate()
		case dice < 15:
			what = "restart the reader"
			_ = f.reader.Close()
			config.From = f.next
			f.reader = testkit.Value(journal.OpenIn(config, j.volatile(), j.persistent())).Must(t)
			restarts++
		case dice == 15:
			what = "restart journald"
			j.sync()
			j.stop()
			j.start()
		case dice == 16:
			what = "kill journald"
			j.kill()
			j.start()
		case dice == 17 && !isFlushed && step > steps/3:
			what = "flush"
			j.flush()
			isFlushed = true
		case dice == 18 && len(j.glob("*@*")) > 0:
			what = "vacuum"
			f.until(len(want))
			// Entries deleted before a stored position covers them could have been lost.
			testkit.Until(t, "all that is archived is read", func() bool {
				_ = f.one(10 * time.Millisecond)
				return !slices.ContainsFunc(append(heldOpen(t, j.volatile()), heldOpen(t, j.persistent())...),
					func(path string) bool { return strings.Contains(path, "@") })
			})
			j.remove("*@*")
		default:
			what = "read"
			for range random.IntN(5) {
				_ = f.one(50 * time.Millisecond)
			}
		}
		happened[what]++
	}
	f.until(len(want))
	f.quiet()
	got := f.texts()
	slices.Sort(got)
	slices.Sort(want)
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("seed %d: %d lines of %d written, lost %d; the first that differs is %.3q, want %.3q", seed, len(got), len(want), f.lost, got[min(i, len(got)):], want[min(i, len(want)):])
		}
	}
	testkit.Check(t, f.lost == 0, "seed %d: %d entries are counted as lost", seed, f.lost)
	testkit.Check(t, len(want) != 0 && restarts != 0, "seed %d: %d messages and %d restarts are too few", seed, len(want), restarts)
	t.Logf("seed %d: %d messages read once each, %v", seed, len(want), happened)
}

func fromEnvironment(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	testkit.Require(t, err == nil, "%s: %v", name, err)
	return n
}
