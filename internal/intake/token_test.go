package intake

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// byToken returns a source on the shared socket that is identified by its token.
func byToken(name, file string, conditions ...string) Source {
	s := source(name, conditions...)
	s.Socket, s.TokenFile = "", file
	return s
}

func TestPipeAsTokenFileBlocksNothing(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "token")
	testkit.Must(t, syscall.Mkfifo(pipe, 0o600))
	s := newFixture(t)
	s.begin("", t.Output())
	folder := t.TempDir()
	shared := filepath.Join(folder, "all.sock")
	testkit.Must(t, s.in.Apply(Setup{Socket: shared, Sources: []Source{byToken("token", pipe), own(folder, "disk-watch", disk)}}))
	defer s.in.shutdown(t.Context())
	why := s.in.Problems()
	testkit.Check(t, len(why) == 1 && strings.Contains(why[0], pipe) && strings.Contains(why[0], "not a regular file"), "%q", why)
	p := newPoster(t, dialUnix(filepath.Join(folder, "disk-watch.sock")))
	p.expect(204, status("disk-watch", condition(disk, true, 0)))
	testkit.Must(t, os.Remove(pipe))
	testkit.Must(t, os.WriteFile(pipe, []byte(secret), 0o600))
	s.in.readTokens()
	p = newPoster(t, dialUnix(shared))
	p.token = secret
	code, refusal, _ := p.post(status("token"))
	testkit.Check(t, code == 204 && len(s.in.Problems()) == 0, "%v %v %v", code, refusal, s.in.Problems())
}

// Reading from a mount whose server is gone blocks until the server returns.
func TestHangingFileSystemBlocksNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *fixture) {
		t.Helper()
		back, reads := make(chan struct{}), atomic.Int64{}
		s.in.read = func(string) (digest, error) {
			reads.Add(1)
			<-back
			return parseToken(secret)
		}
		s.in.open = s.listen
		setup := Setup{Socket: "/run/all.sock", Sources: []Source{byToken("token", "/mnt/token", "NTPProblem"), source("disk-watch", disk)}}
		began := time.Now()
		testkit.Must(t, s.in.Apply(setup))
		testkit.Between(t, time.Since(began), 0, time.Second, "the time to apply a setup")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { s.in.Run(ctx); close(ended) }()
		defer func() { // the clock of the bubble stops with the test, and the shutdown may wait for a connection
			cancel()
			<-ended
		}()
		p := newPoster(t, s.dial("/run/disk-watch.sock"))
		for range 10 {
			p.expect(204, status("disk-watch", condition(disk, true, 0)))
			pass(time.Minute)
		}
		pass(3 * time.Minute)
		s.want(disk, "Unknown SourceSilent") // the agent still detects the silence
		s.want("NTPProblem", "Unknown SourceNeverHeard")
		if why := s.in.Problems(); len(why) != 1 || !strings.Contains(why[0], "/mnt/token: the file system does not answer") || reads.Load() != 1 {
			t.Errorf("%d reads: %q", reads.Load(), why)
		}
		close(back)
		pass(time.Second)
		known := newPoster(t, s.dial("/run/all.sock"))
		known.token = secret
		code, refusal, _ := known.post(status("token", condition("NTPProblem", false, 0)))
		testkit.Check(t, code == 204 && len(s.in.Problems()) == 0, "%v %v %v", code, refusal, s.in.Problems())
		p.client.CloseIdleConnections()
		known.client.CloseIdleConnections()
	})
}

func TestTokenOfTwoSourcesIdentifiesNeither(t *testing.T) {
	folder := t.TempDir()
	one, two := filepath.Join(folder, "one"), filepath.Join(folder, "two")
	testkit.Must(t, os.WriteFile(one, []byte(secret), 0o600))
	testkit.Must(t, os.WriteFile(two, []byte(secret+"\n"), 0o600))
	s := newFixture(t)
	s.begin("", t.Output()).open = s.listen
	testkit.Must(t, s.in.Apply(Setup{Socket: "/run/all.sock", Sources: []Source{byToken("a", one), byToken("b", two)}}))
	defer s.in.shutdown(t.Context())
	why := s.in.Problems()
	testkit.Check(t, len(why) == 1 && strings.Contains(why[0], "as well; give each its own"), "%q", why)
	testkit.Must(t, os.WriteFile(two, []byte(other), 0o600))
	s.in.readTokens()
	s.in.readTokens() // whichever of them was refused
	why = s.in.Problems()
	testkit.Check(t, len(why) == 0, "%q", why)
}

func TestRemovedSourceIsNoFailure(t *testing.T) {
	s := newFixture(t)
	s.begin("", t.Output()).open = s.listen
	testkit.Must(t, s.in.Apply(Setup{Socket: "/run/all.sock", Sources: []Source{byToken("a", "/no/such/token"), source("b", disk)}}))
	defer s.in.shutdown(t.Context())
	testkit.MustBeSame(t, len(s.in.Problems()), 1, "the number of problems")
	testkit.Must(t, s.in.Apply(Setup{Sources: []Source{source("b", disk)}}))
	why := s.in.Problems()
	testkit.Check(t, len(why) == 0, "%q", why)
}
