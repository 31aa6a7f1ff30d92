package intake

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/problem"
)

// typical returns a typical status of about 650 bytes: two conditions with a sentence each,
// and an event with the given time.
func typical(at time.Time) string {
	sentence := "3 bad blocks on /dev/disk/by-id/nvme-eui.0025385b21404321, the last at sector 123456789"
	stamp := at.UTC().Format(time.RFC3339Nano)
	since := "2026-11-15T11:55:00.123456789Z"
	return fmt.Sprintf(`{"source":"flood","events":[{"severity":"warn","timestamp":%q,"reason":"BadBlockFound","message":%q}],"conditions":[`+
		`{"type":"DiskBadBlock","status":true,"transition":%q,"reason":"BadBlocksFound","message":%q},`+
		`{"type":"KernelDeadlock","status":false,"transition":%q,"reason":"NoDeadlock","message":%q}]}`, stamp, sentence, since, sentence, since, sentence)
}

// wireClient sends minimal HTTP, so that the benchmark measures the agent.
type wireClient struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
}

func newWireClient(tb testing.TB, path string) *wireClient {
	tb.Helper()
	conn, err := dialUnix(path)(tb.Context())
	testkit.Must(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	return &wireClient{conn: conn, in: bufio.NewReader(conn)}
}

// post sends a status, and returns the HTTP status of the response.
func (c *wireClient) post(body string) (int, error) {
	c.out = fmt.Appendf(c.out[:0], "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", problem.Path, len(body), body)
	if _, err := c.conn.Write(c.out); err != nil {
		return 0, fmt.Errorf("posting: %w", err)
	}
	response, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return 0, fmt.Errorf("reading an answer: %w", err)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, errors.Join(err, response.Body.Close())
}

// BenchmarkHeartbeatsBesideTenThousandStatusesASecond measures one status of a daemon that
// sends 10,000 per second over four connections. Each has 650 bytes, two conditions and one
// new event. Meanwhile another daemon sends a heartbeat every 5 ms. The benchmark reports the
// achieved rate and the latency of the heartbeats. It asserts that each event is emitted once,
// and bounds the allocations. Client and server share one process.
func BenchmarkHeartbeatsBesideTenThousandStatusesASecond(b *testing.B) {
	const connections, perSecond = 4, 10_000
	events := atomic.Int64{}
	folder := b.TempDir()
	in := New(Config{Logger: slog.New(slog.DiscardHandler), Emit: func(_ string, r finding.Report) { events.Add(int64(len(r.Events))) }})
	flood, calm := own(folder, "flood", disk, "KernelDeadlock"), own(folder, "calm", "NTPProblem")
	calm.Rate, calm.Burst = 1000, 1000
	testkit.Must(b, in.Apply(Setup{Sources: []Source{flood, calm}}))
	b.Cleanup(func() { in.shutdown(b.Context()) })

	other := newWireClient(b, filepath.Join(folder, "calm.sock"))
	heartbeat := strings.ReplaceAll(status("calm", condition("NTPProblem", false, time.Minute)), "\n", "")
	stop, took := make(chan struct{}), []time.Duration(nil)
	var beating, flooding sync.WaitGroup
	beating.Go(func() {
		for tick := time.Tick(5 * time.Millisecond); ; {
			select {
			case <-stop:
				return
			case due := <-tick:
				if code, err := other.post(heartbeat); code != 204 || err != nil {
					b.Errorf("a heartbeat is answered %d, %v", code, err)
				}
				took = append(took, time.Since(due)) // what it waits for the processor is a delay, too
			}
		}
	})
	b.ResetTimer()
	b.ReportAllocs()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	used := processorTime(b)
	for i := range connections {
		client := newWireClient(b, filepath.Join(folder, "flood.sock"))
		flooding.Go(func() {
			for n := i; n < b.N; n += connections {
				due := began.Add(time.Duration(n) * time.Second / perSecond)
				if wait := time.Until(due); wait > 0 {
					time.Sleep(wait) //nolint:forbidigo // this is the pace that is measured
				}
				if code, err := client.post(typical(due.Add(-time.Second))); code != 204 || err != nil {
					b.Errorf("a status is answered %d, %v", code, err)
					return
				}
			}
		})
	}
	flooding.Wait()
	lasted := time.Since(began)
	b.ReportMetric(float64((processorTime(b)-used).Microseconds())/float64(b.N), "cpu-µs/status")
	b.StopTimer()
	runtime.ReadMemStats(&after)
	close(stop)
	beating.Wait()
	// The numbers include both ends and the heartbeats. With few statuses the start dominates.
	if each := float64(after.Mallocs-before.Mallocs) / float64(b.N); b.N >= 1000 && each > 120 {
		b.Errorf("a status costs %.0f allocations, want 120 at most", each)
	}
	if n := int(events.Load()); n != b.N+1 { // and the one of the condition
		b.Errorf("%d events of %d were passed on", n, b.N)
	}
	slices.Sort(took)
	if len(took) > 0 {
		b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "worst-heartbeat-ms")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-heartbeat-ms")
	}
	b.ReportMetric(float64(b.N)/lasted.Seconds(), "statuses/s")
}

// processorTime returns the CPU time of this process.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	testkit.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkStatus measures one status of 650 bytes with a new event, from its bytes to Emit,
// without the network.
func BenchmarkStatus(b *testing.B) {
	in, serve := handler()
	at := time.Now().Add(-time.Hour)
	b.ReportAllocs()
	for b.Loop() {
		at = at.Add(time.Microsecond)
		if code := serve(typical(at)); code != 204 {
			b.Fatal(code)
		}
	}
	if counts, _ := in.Counts(); counts[0].Refused[400] > 0 {
		b.Error("some were refused")
	}
}

// handler returns an intake with one source, and a function that posts to it.
func handler() (*Intake, func(body string) int) {
	in := New(Config{Logger: slog.New(slog.DiscardHandler), Emit: func(string, finding.Report) {}})
	mine := own("/", "flood", disk, "KernelDeadlock")
	in.sources = []*sourceState{newSourceState(mine, time.Now())}
	c := &connection{listener: &sourceListener{addr: mine.listenAddr(), limiter: &connLimiter{limit: maxUnauthenticated}}}
	request := httptest.NewRequest(http.MethodPost, problem.Path, nil)
	request = request.WithContext(withConnection(request.Context(), c))
	var reader bytes.Reader
	return in, func(body string) int {
		reader.Reset([]byte(body))
		request.Body, request.ContentLength = io.NopCloser(&reader), int64(len(body))
		answer := httptest.ResponseRecorder{}
		in.serve(&answer, request)
		return answer.Code
	}
}

// Allocations depend neither on the machine nor on its load.
func TestAStatusCostsFewAllocations(t *testing.T) {
	_, serve := handler()
	at := time.Now().Add(-time.Hour)
	same := typical(at)
	for name, test := range map[string]struct {
		body func() string
		most float64
	}{
		"with nothing new":    {func() string { return same }, 50},
		"with an event in it": {func() string { at = at.Add(time.Millisecond); return typical(at) }, 70},
	} {
		if code := serve(test.body()); code != 204 {
			t.Fatal(code)
		}
		got := testing.AllocsPerRun(1000, func() { serve(test.body()) })
		t.Logf("a status %s costs %v allocations", name, got)
		if got > test.most {
			t.Errorf("a status %s costs %v allocations, want %v at most", name, got, test.most)
		}
	}
}
