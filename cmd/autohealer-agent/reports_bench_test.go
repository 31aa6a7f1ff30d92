package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// poster is a minimal HTTP client, so that the benchmark measures the agent.
type poster struct {
	conn net.Conn
	in   *bufio.Reader
}

func newPoster(tb testing.TB, socket string) poster {
	tb.Helper()
	conn, err := new(net.Dialer).DialContext(tb.Context(), "unix", socket)
	testkit.Must(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	return poster{conn, bufio.NewReader(conn)}
}

// post sends a status, and returns an error if the agent did not accept it.
func (p poster) post(body string) error {
	if _, err := fmt.Fprintf(p.conn, "POST /v1/status HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		return fmt.Errorf("posting: %w", err)
	}
	answer, err := http.ReadResponse(p.in, nil)
	if err != nil {
		return fmt.Errorf("reading an answer: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusNoContent {
		return fmt.Errorf("the response is %s %s: %w", answer.Status, text, err)
	}
	return nil
}

// One op is one status of a daemon that sends 10,000 of them a second over four connections to
// a release build of the agent, without an API server: 650 bytes, two conditions, and one event
// in a hundred statuses, which is logged. Meanwhile another daemon sends a heartbeat every 5 ms.
// The benchmark reports the rate, the duration of the other daemon's heartbeats and the agent's
// memory. It asserts that the agent accepts each status.
func BenchmarkReportsToTheWholeAgent(b *testing.B) {
	const connections, perSecond = 4, 10_000
	s, w := newScene(b), newWatched(b)
	folder := filepath.Dir(w.socket)
	file := filepath.Join(b.TempDir(), "sources.json")
	source := func(name, conditions string) string {
		return fmt.Sprintf(`{"name": %q, "socket": %q, "conditions": [%s], "rate": 1000000, "burst": 1000000}`, name, filepath.Join(folder, name), conditions)
	}
	put(b, file, `{"sources": [`+source("flood", `"DiskBadBlock", "KernelDeadlock"`)+", "+source("calm", `"NTPProblem"`)+`]}`)
	p := launch(b, buildRelease(b, b.TempDir()), append(s.args(), "--config.problem-sources="+file)...)
	p.waitFor("the sockets", func() bool { return p.logged("listening for problem reports") == 2 })
	stamp := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339Nano)
	said := fmt.Sprintf(`, "transition": %q, "reason": "AsEver", "message": %q}`, stamp, strings.Repeat("disk ", 40))
	typical := func(n int) string {
		event := ""
		if n%100 == 0 {
			event = fmt.Sprintf(`{"severity": "warn", "timestamp": %q, "reason": "SlowDisk", "message": "%d"}`, stamp, n)
		}
		return `{"source": "flood", "events": [` + event + `], "conditions": [{"type": "DiskBadBlock", "status": false` + said + `, {"type": "KernelDeadlock", "status": false` + said + `]}`
	}

	other := newPoster(b, filepath.Join(folder, "calm"))
	stop, took := make(chan struct{}), []time.Duration(nil)
	var beating, flooding sync.WaitGroup
	beating.Go(func() {
		for tick := time.Tick(5 * time.Millisecond); ; {
			select {
			case <-stop:
				return
			case due := <-tick:
				if err := other.post(`{"source": "calm", "conditions": [{"type": "NTPProblem", "status": false` + said + `]}`); err != nil {
					b.Error(err)
				}
				took = append(took, time.Since(due))
			}
		}
	})
	b.ResetTimer()
	began := time.Now()
	for i := range connections {
		client := newPoster(b, filepath.Join(folder, "flood"))
		flooding.Go(func() {
			for n := i; n < b.N; n += connections {
				if wait := time.Until(began.Add(time.Duration(n) * time.Second / perSecond)); wait > 0 {
					time.Sleep(wait) //nolint:forbidigo // this is the pace that is measured
				}
				if err := client.post(typical(n)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	flooding.Wait()
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "statuses/s")
	b.StopTimer()
	close(stop)
	beating.Wait()
	if slices.Sort(took); len(took) > 0 {
		b.ReportMetric(milliseconds(took[len(took)-1]), "worst-heartbeat-ms")
		b.ReportMetric(milliseconds(took[len(took)*99/100]), "p99-heartbeat-ms")
	}
	b.ReportMetric(p.resident(), "MB-resident")
	if got := p.metric(`autohealer_agent_problem_reports_total{source="flood",code="204"}`); got != strconv.Itoa(b.N) {
		b.Errorf("%s of %d statuses were accepted", got, b.N)
	}
	p.stop()
}
