package scale

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// sample is a metric with its labels, as printed.
type sample string

// measured is a scrape of metrics.
type measured map[sample]float64

// scrape reads the metrics of a controller.
func scrape(ctx context.Context, address string) (measured, error) {
	_, page, err := testkit.Get(ctx, "http://"+address+"/metrics")
	if err != nil {
		return nil, err
	}
	return parse(strings.NewReader(page))
}

// parse parses a scrape.
func parse(text io.Reader) (measured, error) {
	page := measured{}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("reading the metrics: %q: %w", line, err)
		}
		page[sample(line[:at])] = value
	}
	return page, lines.Err()
}

// sum adds the samples of a metric with all of the labels, each written as name="value".
func (m measured) sum(metric string, labels ...string) (total int) {
	for name, value := range m {
		if strings.HasPrefix(string(name), metric+"{") && !slices.ContainsFunc(labels, func(label string) bool { return !strings.Contains(string(name), label) }) {
			total += int(value)
		}
	}
	return total
}

// work counts a controller's requests to the API server.
type work struct {
	nodes    int // successful writes to nodes
	wasted   int // failed writes to nodes
	ledger   int // writes of the ledger
	statuses int // of policies
	events   int // and other creations: treatments and their leases
	deleted  int // of those
	reads    int // including nodes that are read again after a conflict
	renewals int // of the leader's lease
}

func (m measured) work() work {
	const calls, writes = "rest_client_requests_total", "autohealer_writes_total"
	w := work{
		nodes:    m.sum(writes, `resource="nodes"`, `outcome="made"`),
		ledger:   m.sum(writes, `resource="ledger"`),
		statuses: m.sum(writes, `resource="conditionsets/status"`) + m.sum(writes, `resource="nodehealthchecks/status"`) + m.sum(writes, `resource="repairpolicies/status"`),
		events:   m.sum(calls, `method="POST"`),
		deleted:  m.sum(calls, `method="DELETE"`),
		reads:    m.sum(calls, `method="GET"`),
	}
	w.wasted = m.sum(writes, `resource="nodes"`) - w.nodes
	// Repeated Events are patched, and the lease is put like the ledger.
	w.events += m.sum(calls, `method="PATCH"`) - w.nodes - w.wasted - w.statuses
	w.renewals = m.sum(calls, `method="PUT"`) - w.ledger
	return w
}

func (w work) minus(before work) work {
	return work{
		nodes: w.nodes - before.nodes, wasted: w.wasted - before.wasted, ledger: w.ledger - before.ledger,
		statuses: w.statuses - before.statuses, events: w.events - before.events, deleted: w.deleted - before.deleted,
		reads: w.reads - before.reads, renewals: w.renewals - before.renewals,
	}
}

// writes returns all writes except renewals of the lease, which depend on the time.
func (w work) writes() int { return w.nodes + w.wasted + w.ledger + w.statuses + w.events + w.deleted }

// calls returns the writes and the reads.
func (w work) calls() int { return w.writes() + w.reads }

// await waits until the metrics of a controller fulfil a condition and it has sent no
// request for a while. It returns all of its requests.
func await(b *testing.B, controller *install.Controller, what string, while time.Duration, is func(measured) bool) work {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), maxWait)
	defer cancel()
	ticker := time.NewTicker(quiet / 8)
	defer ticker.Stop()
	var (
		last  work
		since time.Time
	)
	for {
		page := testkit.Value(scrape(ctx, controller.Metrics)).Must(b)
		now := page.work()
		if now.calls() != last.calls() || !is(page) {
			last, since = now, time.Now()
		}
		if is(page) && time.Since(since) >= while {
			return now
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			b.Fatalf("waiting for %s: %v; its work so far: %+v", what, ctx.Err(), now)
		}
	}
}

// usage is the resource usage of a process.
type usage struct {
	resident, peak int           // kilobytes
	cpu            time.Duration // of all cores
}

// ticksPerSecond is Linux' unit of CPU time.
const ticksPerSecond = 100

// use reads the resource usage of a controller.
func use(b *testing.B, controller *install.Controller) (u usage) {
	b.Helper()
	process := fmt.Sprintf("/proc/%d/", controller.PID())
	status := testkit.Value(os.ReadFile(process + "status")).Must(b)
	for field, to := range map[string]*int{"VmRSS:": &u.resident, "VmHWM:": &u.peak} {
		_, rest, _ := strings.Cut(string(status), field)
		if _, err := fmt.Sscan(rest, to); err != nil {
			b.Fatalf("reading %s of the controller: %v", field, err)
		}
	}
	stat := testkit.Value(os.ReadFile(process + "stat")).Must(b)
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may have spaces
	fields := strings.Fields(rest)
	for _, field := range fields[11:13] { // utime and stime
		ticks, err := strconv.Atoi(field)
		if err != nil {
			b.Fatalf("reading the time of the controller: %v", err)
		}
		u.cpu += time.Duration(ticks) * time.Second / ticksPerSecond
	}
	return u
}

// percentile returns the smallest duration that this percentage of durations does not
// exceed.
func percentile(durations []time.Duration, part int) time.Duration {
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[(part*len(sorted)+99)/100-1]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
