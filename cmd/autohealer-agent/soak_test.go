package main

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// soakEnv enables the full soak: 10 million lines, 200 rotations, 50 restarts. By default the
// test does a hundredth of that.
const soakEnv = "AUTOHEALER_SOAK"

// TestSoak runs an agent on a log that is rotated repeatedly, by renaming and by copying, while
// the agent is stopped and killed repeatedly. Each problem is found under exactly one identity,
// and the memory does not grow.
func TestSoak(t *testing.T) {
	lines, rotations, restarts := 100_000, 20, 6
	if os.Getenv(soakEnv) != "" {
		lines, rotations, restarts = 10_000_000, 200, 50
	}
	const seed = 11
	t.Logf("%d lines, %d rotations, %d restarts, seed %d", lines, rotations, restarts, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := newScene(t)
	put(t, s.config, fifteenRules(t, s.log.path))
	release := buildRelease(t, t.TempDir())
	tally := &findings{ids: map[string]string{}}
	p := launch(t, release, s.args()...)
	w := &writer{t: t, path: s.log.path, random: random}
	smallest, largest := 1e9, 0.0
	caughtUp := func() bool { tally.add(t, p); return len(tally.ids) == w.problems }

	// The agent cannot know a log that is rotated before its first read.
	w.write(1000)
	p.waitFor("the log", caughtUp)
	stops, kills, copies := 0, 0, 0
	for round := range rotations {
		size := lines / rotations
		down := round*restarts/rotations != (round+1)*restarts/rotations
		if down {
			w.write(size / 2)
			smallest, largest = min(smallest, p.resident()), max(largest, p.resident())
			if kills <= stops {
				p.kill()
				kills++
			} else {
				p.stop()
				stops++
			}
			tally.add(t, p)
			size -= size / 2
		}
		w.write(size) // possibly while no agent runs
		copied := random.IntN(2)
		copies += copied
		w.rotate(copied == 1)
		if down {
			p = launch(t, release, s.args()...)
		}
		// logrotate keeps few old files; a slower agent would lose lines.
		if tally.add(t, p); round%3 == 2 {
			p.waitFor("that it has caught up", caughtUp)
		}
	}
	p.waitFor("that it has caught up", caughtUp)
	smallest, largest = min(smallest, p.resident()), max(largest, p.resident())
	p.stop()
	tally.add(t, p)

	t.Logf("saw %d problems, %d of them reported again; %d stops, %d kills, %d of the rotations by copying; memory %.1f to %.1f MB",
		len(tally.ids), tally.again, stops, kills, copies, smallest, largest)
	testkit.Check(t, w.problems != 0 && len(tally.ids) == w.problems, "%d of %d problems were found", len(tally.ids), w.problems)
	testkit.Check(t, stops != 0 && kills != 0 && copies != 0 && copies != rotations, "one way to stop or to rotate was never used: the test is incomplete")
	testkit.Check(t, largest <= 25, "the agent has %.1f MB of memory", largest)
}

// findings holds the identity of each problem, by the number in its message.
type findings struct {
	ids   map[string]string
	again int
	of    *process
	seen  map[string]bool // reported by the current agent
	read  int             // lines of its log
}

var numbered = regexp.MustCompile(`msg="problem found".*Killed process (\d+) .* id=([0-9a-f]+)`)

// add counts the new log lines of an agent.
func (c *findings) add(t *testing.T, p *process) {
	t.Helper()
	if c.of != p {
		c.of, c.read, c.seen = p, 0, map[string]bool{}
	}
	log := p.log()
	for _, line := range log[c.read:] {
		found := numbered.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		number, id := found[1], found[2]
		if before, ok := c.ids[number]; ok {
			c.again++
			testkit.Same(t, before, id, "the identity of problem %s", number)
			testkit.Check(t, !c.seen[number], "problem %s is found twice by one agent", number)
		}
		c.seen[number] = true
		c.ids[number] = id
	}
	c.read = len(log)
}

// writer writes a log and rotates it as logrotate does.
type writer struct {
	t        *testing.T
	path     string
	random   *rand.Rand
	problems int
}

func (w *writer) write(lines int) {
	w.t.Helper()
	file := testkit.Value(os.OpenFile(w.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)).Must(w.t)
	defer file.Close()
	out := bufio.NewWriterSize(file, 1<<16)
	stamp := time.Now().Format(time.Stamp)
	for range lines {
		message := vocabulary[w.random.IntN(len(vocabulary))]
		if w.random.IntN(200) == 0 {
			w.problems++
			message = fmt.Sprintf("Killed process %d (heapster) total-vm:327128kB, anon-rss:306328kB, file-rss:11132kB", w.problems)
		}
		fmt.Fprintf(out, "%s node-1 kernel: [%12.6f] %s\n", stamp, w.random.Float64()*1e5, message)
	}
	testkit.Must(w.t, out.Flush())
}

// rotate renames or copies the log, and keeps the last five files.
func (w *writer) rotate(copies bool) {
	w.t.Helper()
	for n := 5; n >= 1; n-- {
		_ = os.Rename(fmt.Sprintf("%s.%d", w.path, n), fmt.Sprintf("%s.%d", w.path, n+1))
	}
	_ = os.Remove(w.path + ".6")
	if !copies {
		testkit.Must(w.t, os.Rename(w.path, w.path+".1"))
		return
	}
	from := testkit.Value(os.Open(w.path)).Must(w.t)
	defer from.Close()
	to := testkit.Value(os.Create(w.path + ".1")).Must(w.t)
	defer to.Close()
	testkit.Value(io.Copy(to, from)).Must(w.t)
	testkit.Must(w.t, os.Truncate(w.path, 0))
}
