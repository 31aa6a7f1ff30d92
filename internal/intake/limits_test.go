package intake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/problem"
)

// With the default limits, a source that sends too much is slowed down, and another source is
// not affected.
func TestFloodIsSlowedAndDelaysNoOtherSource(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		flood, calm := source("flood", disk), source("calm", "NTPProblem")
		defer s.run(t.Context(), flood, calm)()
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		var taken, late atomic.Int64
		for range flood.Connections {
			p := newPoster(t, s.dial(flood.Socket))
			running.Go(func() {
				for ctx.Err() == nil { // without a thought to what is answered
					switch code, _, header := p.post(status("flood", event("Flood", 0))); code {
					case 204:
						taken.Add(1)
					case 429:
						late.Add(1)
						testkit.Check(t, header.Get("Retry-After") != "", "it is not told for how long to be quiet")
					default:
						t.Errorf("it is answered %d", code)
					}
				}
				p.client.CloseIdleConnections()
			})
		}
		p := newPoster(t, s.dial(calm.Socket))
		const long = 2 * time.Minute
		var worst time.Duration
		for range int(long / time.Second) {
			pass(time.Second)
			asked := time.Now()
			p.expect(204, status("calm", condition("NTPProblem", false, 0)))
			worst = max(worst, time.Since(asked))
		}
		stop()
		running.Wait()
		p.client.CloseIdleConnections()
		counts := s.countsOf("flood")
		t.Logf("of the flood %d were taken and %d sent away, of the other the slowest took %s", taken.Load(), late.Load(), worst)
		// Each status has one event, so it costs two tokens.
		allowed := int64(flood.Burst)/2 + int64(long/time.Second)*int64(flood.Rate)/2
		testkit.Between(t, taken.Load(), allowed*9/10, allowed*11/10, "statuses that were taken in %s", long)
		testkit.Check(t, counts.Slowed >= uint64(allowed/2), "it was slowed %d times", counts.Slowed)
		testkit.Check(t, worst <= 0, "the other has waited for %s", worst)
	})
}

func TestManyEventsDelayLaterStatuses(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		defer s.run(t.Context(), source("flood", disk))()
		p := newPoster(t, s.dial("/run/flood.sock"))
		defer p.client.CloseIdleConnections()
		var many []string
		for i := range problem.MaxEvents {
			many = append(many, event(fmt.Sprintf("E%d", i), time.Duration(problem.MaxEvents-i)))
		}
		began, taken, code := time.Now(), -1, 204
		var header map[string][]string
		for ; code == 204; taken++ {
			code, _, header = p.post(status("flood", many...))
		}
		testkit.Check(t, taken >= 2 && taken <= 3 && code == 429 && len(header["Retry-After"]) == 1, "%d were taken, then %d %v", taken, code, header)
		t.Logf("%d were taken in %s, then %d, to come again in %ss", taken, time.Since(began), code, header["Retry-After"])
	})
}

func TestTokenBucketNeverExceedsItsRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1000, 0)
		began, rate, burst := now, rapid.IntRange(1, 50).Draw(t, "rate"), rapid.IntRange(1, 50).Draw(t, "burst")
		b := newTokenBucket(rate, burst, now)
		taken := 0.0
		for range rapid.IntRange(1, 200).Draw(t, "takes") {
			now = now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "ms")) * time.Millisecond)
			wait, ok := b.take(now, maxDelay)
			if ok {
				taken++
				// After the wait, no more tokens are taken than were available by then.
				due := float64(burst) + now.Add(wait).Sub(began).Seconds()*float64(rate)
				testkit.Require(t, taken <= due+0.01, "%v were taken where %v were due", taken, due)
			}
			testkit.Require(t, wait >= 0 && ok == (wait <= maxDelay), "wait %s, %v", wait, ok)
		}
	})
}

func TestConnectionsOfASourceAreLimited(t *testing.T) {
	few := func(folder string) Source {
		s := own(folder, "disk-watch", disk)
		s.Connections = 3
		return s
	}
	s, folder := onSockets(t, func(folder string) Setup {
		return Setup{Sources: []Source{few(folder), own(folder, "ntp-watch", "NTPProblem")}}
	})
	path := filepath.Join(folder, "disk-watch.sock")
	var held []*poster
	for i := range 6 {
		p := newPoster(t, dialUnix(path)) // each has a connection of its own
		want := 204
		if i >= 3 {
			want = 429
		}
		code, refusal, _ := p.post(status("disk-watch"))
		testkit.Check(t, code == want, "connection %d: %d %v, want %d", i, code, refusal, want)
		held = append(held, p)
	}
	if code, _, _ := newPoster(t, dialUnix(filepath.Join(folder, "ntp-watch.sock"))).post(status("ntp-watch")); code != 204 {
		t.Errorf("another source: %d", code)
	}
	held[0].client.CloseIdleConnections()
	waitFor(t, "a place", func() bool {
		code, _, _ := held[4].post(status("disk-watch"))
		return code == 204
	})
	for _, p := range held {
		p.client.CloseIdleConnections()
	}
	waitFor(t, "all places", func() bool {
		src := s.in.sources[0]
		src.mu.Lock()
		defer src.mu.Unlock()
		return src.connections == 0
	})
}

func waitFor(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); {
		testkit.Require(tb, !time.Now().After(deadline), "waited for %s", what)
		runtime.Gosched()
	}
}

// pendingConnections returns the unauthenticated connections of all listeners.
func (s *fixture) pendingConnections() (all []*connection) {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	for _, l := range s.in.listeners {
		l.limiter.mu.Lock()
		all = append(all, l.limiter.pending...)
		l.limiter.mu.Unlock()
	}
	return all
}

func (s *fixture) pendingCount() int { return len(s.pendingConnections()) }

// Clients that connect and send nothing keep out no other client, and are disconnected.
func TestIdleClientsKeepNoOtherClientOut(t *testing.T) {
	s, folder := onSockets(t, func(folder string) Setup { return Setup{Sources: []Source{own(folder, "disk-watch", disk)}} })
	dial := dialUnix(filepath.Join(folder, "disk-watch.sock"))
	for i := range 10 * maxUnauthenticated {
		conn := testkit.Value(dial(t.Context())).Must(t)
		defer conn.Close()
		fmt.Fprint(conn, "POST /v1/status HTTP/1.1\r\nX: ")
		if i%maxUnauthenticated == 0 {
			p := newPoster(t, dial)
			p.expect(204, status("disk-watch"))
		}
	}
	// A client with a response connected after all of them.
	newPoster(t, dial).expect(204, status("disk-watch"))
	testkit.Between(t, s.pendingCount(), maxUnauthenticated/2, maxUnauthenticated, "waiting connections")
}

// Many clients of one listener do not cause disconnects at another.
func TestEachListenerHasItsOwnLimit(t *testing.T) {
	_, folder := onSockets(t, func(folder string) Setup {
		return Setup{Sources: []Source{own(folder, "crowded", disk), own(folder, "calm", "NTPProblem")}}
	})
	calm := testkit.Value(dialUnix(filepath.Join(folder, "calm.sock"))(t.Context())).Must(t)
	defer calm.Close()
	fmt.Fprint(calm, "POST /v1/status HTTP/1.1\r\nHost: a\r\n")
	for range 3 * maxUnauthenticated {
		conn := testkit.Value(dialUnix(filepath.Join(folder, "crowded.sock"))(t.Context())).Must(t)
		defer conn.Close()
	}
	newPoster(t, dialUnix(filepath.Join(folder, "crowded.sock"))).expect(204, status("crowded"))
	body := status("calm")
	fmt.Fprintf(calm, "Content-Length: %d\r\n\r\n%s", len(body), body)
	var answer [64]byte
	if n, err := calm.Read(answer[:]); err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 204 ") {
		t.Errorf("%q, %v", answer[:n], err)
	}
}

// A daemon whose client obeys Retry-After does not become silent because of it.
func TestDelayedSourceIsNotSilent(t *testing.T) {
	for _, test := range []struct {
		rate, burst int
		silence     time.Duration
	}{
		{20, 200, 5 * time.Second}, {1, 10, 30 * time.Second}, {1, 10, 2 * time.Minute}, {1, 1, 5 * time.Second},
	} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *fixture) {
				t.Helper()
				mine := source("disk-watch", disk, "NTPProblem")
				mine.Rate, mine.Burst, mine.Silence = test.rate, test.burst, test.silence
				defer s.run(t.Context(), mine)()
				c, stop := s.daemon(t.Context(), problem.Config{Source: "disk-watch", Heartbeat: test.silence / 4})
				testkit.Must(t, c.SetCondition(unhealthy))
				pass(time.Second)
				for i := range 1000 {
					testkit.Must(t, c.Report(problem.Event{Reason: "Backlog", Timestamp: time.Now().Add(-time.Hour + time.Duration(i)*time.Millisecond)}))
				}
				for range 1500 {
					pass(time.Second)
					s.want(disk, "True BadBlocksFound")
				}
				s.want("NTPProblem", "Unknown SourceNeverHeard") // which it does not tell
				counts := s.countsOf("disk-watch")
				testkit.Check(t, counts.Events == 1000 && (counts.Refused[429] != 0 || counts.Slowed != 0), "%+v", counts)
				stop()
				pass(test.silence + test.silence/5 + 2*time.Second)
				s.want(disk, "Unknown SourceSilent")
			})
		})
	}
}

func TestSlowClientIsDisconnected(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		defer s.run(t.Context(), source("disk-watch", disk))()
		for _, test := range []struct {
			sends string
			want  string
		}{
			{"POST /v1/status HTTP/1.1\r\nX: ", ""},
			{"POST /v1/status HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{", "HTTP/1.1 408 "},
		} {
			conn := testkit.Value(s.dial("/run/disk-watch.sock")(t.Context())).Must(t)
			began := time.Now()
			go func() { fmt.Fprint(conn, test.sends) }()
			var answer [1024]byte
			n, err := conn.Read(answer[:])
			if after := time.Since(began); after > readTimeout || !strings.HasPrefix(string(answer[:n]), test.want) || test.want == "" && n > 0 && !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 4") {
				t.Errorf("after %s: %q, %v", after, answer[:n], err)
			}
			testkit.Must(t, conn.Close())
		}
		pass(time.Second)
		testkit.Same(t, s.in.sources[0].connections+s.pendingCount(), 0, "connections that are still there")
	})
}

func TestSocketPathIsTaken(t *testing.T) {
	setup := func(folder string) Setup { return Setup{Sources: []Source{own(folder, "disk-watch", disk)}} }
	t.Run("replaces a socket without a listener", func(t *testing.T) {
		folder := t.TempDir()
		left := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(folder, "disk-watch.sock")})).Must(t)
		left.SetUnlinkOnClose(false)
		testkit.Must(t, left.Close())
		s := newFixture(t)
		s.begin("", t.Output())
		testkit.Must(t, s.in.Apply(setup(folder)))
		why := s.in.Problems()
		testkit.Check(t, len(why) == 0, "%v", why)
		s.in.shutdown(t.Context())
		_, err := os.Lstat(left.Addr().String())
		testkit.Check(t, os.IsNotExist(err), "at the end the socket is still there: %v", err)
	})
	for name, obstruct := range map[string]func(t *testing.T, path string) (remove func()){
		"a file": func(t *testing.T, path string) func() {
			t.Helper()
			testkit.Must(t, os.WriteFile(path, []byte("precious"), 0o600))
			return func() {
				text, err := os.ReadFile(path)
				testkit.Check(t, err == nil && string(text) == "precious", "%q, %v", text, err)
				testkit.Must(t, os.Remove(path))
			}
		},
		"another listener": func(t *testing.T, path string) func() {
			t.Helper()
			other := testkit.Value(net.Listen("unix", path)).Must(t)
			return func() { testkit.Must(t, other.Close()) }
		},
		"a file for a folder": func(t *testing.T, path string) func() {
			t.Helper()
			testkit.Must(t, os.Remove(filepath.Dir(path)))
			testkit.Must(t, os.WriteFile(filepath.Dir(path), nil, 0o600))
			return func() { testkit.Must(t, os.Remove(filepath.Dir(path))) }
		},
	} {
		t.Run("keeps "+name+", reports it and retries", func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "f")
			testkit.Must(t, os.Mkdir(folder, 0o700))
			path := filepath.Join(folder, "disk-watch.sock")
			remove := obstruct(t, path)
			s := newFixture(t)
			s.begin("", t.Output())
			testkit.Must(t, s.in.Apply(setup(folder)))
			why := s.in.Problems()
			testkit.Check(t, len(why) == 1 && strings.Contains(why[0], path), "%q", why)
			remove()
			s.in.updateListeners()
			why = s.in.Problems()
			testkit.Check(t, len(why) == 0, "%q", why)
			p := newPoster(t, dialUnix(path))
			p.expect(204, status("disk-watch"))
			p.client.CloseIdleConnections()
			s.in.shutdown(t.Context())
		})
	}
}

// The setup may change at any moment, even while requests are in flight.
func TestSetupMayChangeWhileSourcesReport(t *testing.T) {
	s, folder := onSockets(t, func(folder string) Setup { return Setup{Sources: []Source{own(folder, "a", disk), own(folder, "b")}} })
	ctx, stop := context.WithCancel(t.Context())
	var reporting sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		c, err := problem.New(problem.Config{Source: name, Socket: filepath.Join(folder, name+".sock"), Every: time.Millisecond, Heartbeat: time.Millisecond})
		testkit.Must(t, err)
		reporting.Go(func() { c.Run(ctx) })
		reporting.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if name == "a" {
					_ = c.SetCondition(problem.Condition{Type: disk, Status: problem.ConditionStatus(i % 2), Reason: "Changes"})
				}
				_ = c.Report(problem.Event{Reason: "Something"})
				runtime.Gosched()
			}
		})
	}
	for i := range 50 {
		sources := []Source{own(folder, "a", disk), own(folder, "b")}
		if i%2 == 0 {
			sources = sources[1:]
		}
		testkit.Must(t, s.in.Apply(Setup{Sources: sources}))
		got, _ := s.is(disk)
		testkit.Require(t, i%2 != 0 || got == "", "the condition of a source that is gone is %q", got)
		s.in.tick(time.Minute, time.Now())
		s.in.Counts()
	}
	waitFor(t, "a to be heard again", func() bool { got, _ := s.is(disk); return strings.HasSuffix(got, " Changes") })
	stop()
	reporting.Wait()
}

// A source that opens a new connection for every status, and exceeds its limit, is slowed as
// any other flood. Each waiting response holds a connection, so there are few.
func TestFloodOverNewConnectionsIsSlowed(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		flood := source("flood", disk)
		defer s.run(t.Context(), flood)()
		dial := s.dial(flood.Socket)
		for range flood.Connections {
			p := newPoster(t, dial)
			defer p.client.CloseIdleConnections()
			p.expect(204, status("flood"))
		}
		const together, long = 10, time.Minute
		began := time.Now()
		var running sync.WaitGroup
		var late atomic.Int64
		for range together {
			running.Go(func() {
				for tries := 0; time.Since(began) < long && tries < 1000; tries++ {
					p := newPoster(t, dial)
					if code, refusal, header := p.post(status("flood")); code != 429 || header.Get("Retry-After") == "" {
						t.Error(code, refusal)
						return
					}
					late.Add(1)
				}
			})
		}
		pass(maxDelay / 2)
		testkit.Same(t, s.pendingCount(), together, "pending connections: only those that wait for an answer")
		running.Wait()
		testkit.Between(t, late.Load(), 0, together*int64(long/maxDelay), "late answers within %s", long)
	})
}

// A user that connects as fast as it can keeps out no other user.
func TestConnectionsOfOneUserKeepOutNoOtherUser(t *testing.T) {
	testkit.MustBeSame(t, os.Getuid(), 0, "run this test as root: it crowds as another user")
	folder := publicFolder(t)
	program := daemon(t, folder)
	shared, token := filepath.Join(folder, "all.sock"), filepath.Join(folder, "token")
	testkit.Must(t, os.WriteFile(token, []byte(secret), 0o600))
	mine := own(folder, "disk-watch", disk)
	mine.Socket, mine.TokenFile = "", token
	s, _ := onSockets(t, func(string) Setup { return Setup{Socket: shared, Sources: []Source{mine}} })
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = []string{"INTAKE_TEST_CROWD=" + shared}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4001, Gid: 4001}}
	testkit.Must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	waitFor(t, "the crowd", func() bool { return s.pendingCount() == maxUnauthenticated })

	calm := dialCrowded(t, shared)
	defer calm.Close()
	fmt.Fprintf(calm, "POST /v1/status HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n", secret)
	waitFor(t, "its turn", func() bool {
		return slices.ContainsFunc(s.pendingConnections(), func(c *connection) bool { return c.user() == 0 })
	})
	for range 3 {
		was := s.pendingConnections()
		waitFor(t, "all of the crowd to be others", func() bool {
			here := s.pendingConnections()
			return !slices.ContainsFunc(was, func(c *connection) bool { return c.user() == 4001 && slices.Contains(here, c) })
		})
	}
	body := status("disk-watch")
	fmt.Fprintf(calm, "Content-Length: %d\r\n\r\n%s", len(body), body)
	var answer [64]byte
	if n, err := calm.Read(answer[:]); err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 204 ") {
		t.Errorf("the slow connection is answered %q, %v", answer[:n], err)
	}

	const enough = 5
	taken, full := 0, 0
	for deadline := time.Now().Add(15 * time.Second); taken < enough; {
		testkit.Require(t, !time.Now().After(deadline), "%d statuses were taken, and %d times there was no way in", taken, full)
		switch code, err := report(shared, status("disk-watch"), secret); {
		case errors.Is(err, syscall.EAGAIN):
			full++
			runtime.Gosched()
		case err != nil || code != 204:
			t.Errorf("an accepted connection is answered %d, %v", code, err)
			taken++
		default:
			taken++
		}
	}
	t.Logf("%d statuses were taken, and %d times there was no way in", taken, full)
}

// dialCrowded connects to a socket with a full queue in the kernel, which does not distinguish
// users. It may take several attempts.
func dialCrowded(t *testing.T, path string) (conn net.Conn) {
	t.Helper()
	waitFor(t, "a way in", func() (in bool) {
		var err error
		conn, err = net.Dial("unix", path)
		testkit.Require(t, err == nil || errors.Is(err, syscall.EAGAIN), "%v", err)
		return err == nil
	})
	return conn
}

func TestLimiterEvictsTheUserWithTheMostConnections(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := &connLimiter{limit: rapid.IntRange(1, 8).Draw(t, "places")}
		users := rapid.SliceOfN(rapid.IntRange(-1, 3), 1, 60).Draw(t, "users")
		var inside []*connection // the connections that should be open
		for _, user := range users {
			c := &connection{Conn: unusedConn{}, listener: &sourceListener{limiter: at}, closed: make(chan struct{})}
			if user >= 0 {
				c.peer = &peer{uid: user}
			}
			inside = append(inside, c)
			if at.add(c); len(inside) <= at.limit {
				continue
			}
			has := map[int]int{}
			for _, c := range inside {
				has[c.user()]++
			}
			most := slices.Max(slices.Collect(maps.Values(has)))
			gone := slices.IndexFunc(inside, func(c *connection) bool { return c.isClosed })
			testkit.Require(t, gone >= 0 && has[inside[gone].user()] == most, "number %d has to go, of %v", gone, has)
			testkit.MustBeSame(t, slices.IndexFunc(inside, func(c *connection) bool { return c.user() == inside[gone].user() }), gone,
				"the index of the connection that has to go, which is the oldest of its user")
			inside = slices.Delete(inside, gone, gone+1)
			testkit.Require(t, slices.Equal(inside, at.pending), "%d are there, want %d", len(at.pending), len(inside))
		}
	})
}

// unusedConn is a connection that no test reads or writes.
type unusedConn struct{ net.Conn }

func (unusedConn) Close() error { return nil }
