package intake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/testkit"
)

const (
	secret = "correct-horse-battery-staple"
	other  = "another-horse-another-staple"
)

// TestMain lets the test binary act as a daemon of another user.
func TestMain(m *testing.M) {
	if path := os.Getenv("INTAKE_TEST_REPORT_TO"); path != "" {
		os.Exit(reportOnce(path, os.Getenv("INTAKE_TEST_BODY"), os.Getenv("INTAKE_TEST_TOKEN"))) //nolint:forbidigo // this is main here
	}
	if path := os.Getenv("INTAKE_TEST_CROWD"); path != "" {
		openConnectionsForever(path)
	}
	os.Exit(m.Run()) //nolint:forbidigo // this is main here
}

// reportOnce posts a body, and returns the HTTP status minus 200, as an exit code.
func reportOnce(path, body, token string) int {
	code, err := report(path, body, token)
	if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "dial" {
		return 1
	}
	if err != nil {
		return 2
	}
	return code - 200
}

// report posts a body over a new connection, and returns the HTTP status.
func report(path, body, token string) (code int, err error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/status HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", token, len(body), body)
	_, err = fmt.Fscanf(conn, "HTTP/1.1 %d", &code)
	return code, err
}

// openConnectionsForever opens connections and holds them, until it is killed.
func openConnectionsForever(path string) {
	held := make([]net.Conn, 100)
	for i := 0; ; {
		conn, err := net.Dial("unix", path)
		if err != nil {
			continue
		}
		if held[i] != nil {
			_ = held[i].Close()
		}
		held[i] = conn
		i = (i + 1) % len(held)
	}
}

// as posts a body as another user, and returns the HTTP status.
func as(t *testing.T, program string, uid, gid uint32, path, body, token string) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = []string{"INTAKE_TEST_REPORT_TO=" + path, "INTAKE_TEST_BODY=" + body, "INTAKE_TEST_TOKEN=" + token}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	cmd.Dir = "/"
	_ = cmd.Run() // its code says more
	return cmd.ProcessState.ExitCode() + 200
}

// daemon copies the test binary into a directory that other users may read.
func daemon(t *testing.T, folder string) string {
	t.Helper()
	text := testkit.Value(os.ReadFile(os.Args[0])).Must(t)
	program := filepath.Join(folder, "daemon")
	testkit.Must(t, os.WriteFile(program, text, 0o755))
	return program
}

// publicFolder returns a directory that all users may read.
func publicFolder(t *testing.T) string {
	t.Helper()
	folder := testkit.Value(os.MkdirTemp("", "intake-")).Must(t)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	testkit.Must(t, os.Chmod(folder, 0o755))
	return folder
}

func TestSourcesAreIdentifiedByTheirCredentials(t *testing.T) {
	testkit.MustBeSame(t, os.Getuid(), 0, "run this test as root: it reports as several users")
	folder := publicFolder(t)
	program := daemon(t, folder)
	token, sum := filepath.Join(folder, "token"), filepath.Join(folder, "sum")
	testkit.Must(t, os.WriteFile(token, []byte(secret+"\n"), 0o600))
	digest := sha256.Sum256([]byte(other))
	testkit.Must(t, os.WriteFile(sum, []byte("sha256:"+hex.EncodeToString(digest[:])), 0o600))
	shared, ownSocket, groups := filepath.Join(folder, "all.sock"), filepath.Join(folder, "own", "s.sock"), filepath.Join(folder, "group", "s.sock")
	id := func(n int) *int { return &n }
	by := func(name string, change func(*Source)) Source {
		s := source(name)
		s.Socket = ""
		change(&s)
		return s
	}
	free := testkit.Value(net.Listen("tcp", "127.0.0.1:0")).Must(t)
	tcp := free.Addr().String()
	testkit.Must(t, free.Close())
	s, _ := onSockets(t, func(string) Setup {
		return Setup{Socket: shared, TCP: tcp, Sources: []Source{
			by("user", func(s *Source) { s.UID, s.GID = id(4001), id(1) }),
			by("group", func(s *Source) { s.GID = id(4002) }),
			by("token", func(s *Source) { s.TokenFile = token }),
			by("both", func(s *Source) { s.TokenFile, s.UID = sum, id(4003) }),
			by("own", func(s *Source) { s.Socket = ownSocket }),
			by("own-user", func(s *Source) { s.Socket, s.UID, s.GID = groups, id(4004), id(4005) }),
		}}
	})
	const known, unauthorized, notYou, noEntry = 204, 401, 403, 201
	for _, test := range []struct {
		what        string
		uid, gid    uint32
		path        string
		says, shows string
		want        int
	}{
		{"its user", 4001, 1, shared, "user", "", known},
		{"its user, but another name", 4001, 1, shared, "group", "", notYou},
		{"its user, and a wrong token", 4001, 1, shared, "user", "wrong", unauthorized},
		{"another user", 4000, 1, shared, "user", "", unauthorized},
		{"root", 0, 0, shared, "user", "", unauthorized},
		{"its group", 4999, 4002, shared, "group", "", known},
		{"a token", 4000, 1, shared, "token", secret, known},
		{"a token of root", 0, 0, shared, "token", secret, known},
		{"half of a token", 0, 0, shared, "token", secret[:20], unauthorized},
		{"more than a token", 0, 0, shared, "token", secret + "x", unauthorized},
		{"no token", 0, 0, shared, "token", "", unauthorized},
		{"the token of another", 4003, 1, shared, "both", secret, notYou},
		{"a token and its user", 4003, 1, shared, "both", other, known},
		{"a token without its user", 4000, 1, shared, "both", other, unauthorized},
		{"the sum and not the token", 4003, 1, shared, "both", hex.EncodeToString(digest[:]), unauthorized},
		{"its socket", 0, 0, ownSocket, "own", "", known},
		{"its socket as another user", 4000, 1, ownSocket, "own", "", noEntry},
		{"its socket, but another name", 0, 0, ownSocket, "user", "", notYou},
		{"its socket and user", 4004, 4005, groups, "own-user", "", known},
		{"its socket and group, but another user", 4000, 4005, groups, "own-user", "", unauthorized},
		{"its socket as root", 0, 0, groups, "own-user", "", unauthorized},
		{"the shared socket used by a source with its own socket", 0, 0, shared, "own", "", unauthorized},
	} {
		t.Run(test.what, func(t *testing.T) {
			testkit.Same(t, as(t, program, test.uid, test.gid, test.path, status(test.says), test.shows), test.want, "the status code")
		})
	}
	t.Run("accepts only tokens over TCP", func(t *testing.T) {
		p := newPoster(t, func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", tcp) })
		for token, want := range map[string]int{secret: 204, other: 401, "": 401, "wrong": 401} {
			p.token = token
			got, _, _ := p.post(status("token"))
			testkit.Check(t, got == want, "with %q: %d, want %d", token, got, want)
		}
	})
	t.Run("follows a replaced or deleted token", func(t *testing.T) {
		p := newPoster(t, dialUnix(shared))
		p.token = "a-new-and-much-better-token"
		testkit.Must(t, os.WriteFile(token, []byte(p.token), 0o600))
		s.in.readTokens()
		got, _, _ := p.post(status("token"))
		testkit.Check(t, got == 204, "the new one: %d", got)
		for _, bad := range []string{"", "short", "sha256:", "sha256:abcd"} {
			testkit.Must(t, os.WriteFile(token, []byte(bad), 0o600))
			s.in.readTokens()
			p.token = bad
			got, _, _ := p.post(status("token"))
			testkit.Check(t, got == 401, "with the file %q: %d", bad, got)
			why := s.in.Problems()
			testkit.Check(t, len(why) == 1 && strings.Contains(why[0], token), "%q", why)
		}
		testkit.Must(t, os.Remove(token))
		s.in.readTokens()
		got, _, _ = p.post(status("token"))
		testkit.Check(t, got == 401, "without a file: %d", got)
	})
	_, unauthenticated := s.in.Counts()
	testkit.Check(t, unauthenticated != 0, "unauthenticated requests are not counted")
}

// For any sources and clients: a client that is identified as a source has all its
// credentials, and no client is identified as two.
func TestNoClientIsMisidentified(t *testing.T) {
	found, strange := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		maybe := func(label string) *int {
			if !rapid.Bool().Draw(t, label) {
				return nil
			}
			n := rapid.IntRange(0, 2).Draw(t, label+" is")
			return &n
		}
		tokens := []string{"", "/a-token-of-some-length", "/b-token-of-some-length", "/c-token-of-some-length"}
		var setup Setup
		setup.Socket = "/all"
		for i := range rapid.IntRange(1, 4).Draw(t, "sources") {
			s := source(fmt.Sprintf("s%d", i))
			s.Socket = rapid.SampledFrom([]string{"", "", s.Socket}).Draw(t, "socket")
			s.UID, s.GID = maybe("uid"), maybe("gid")
			s.TokenFile = rapid.SampledFrom(tokens).Draw(t, "token")
			setup.Sources = append(setup.Sources, s)
		}
		if setup.Validate() != nil {
			t.Skip("this cannot be configured")
		}
		var states []*sourceState
		for _, s := range setup.Sources {
			src := newSourceState(s, time.Now())
			if s.TokenFile != "" {
				sum := digest(sha256.Sum256([]byte(s.TokenFile)))
				src.token = &sum
			}
			states = append(states, src)
		}
		// The current sockets, and one that belonged to s0 before.
		doors := append(setup.listenAddrs(), listenAddr{network: "unix", address: "/all"}, listenAddr{"unix", "/run/s0.sock", "s0", 7, -1})
		creds := credentials{addr: rapid.SampledFrom(doors).Draw(t, "at"), token: rapid.SampledFrom(tokens).Draw(t, "shows")}
		if rapid.Bool().Draw(t, "seen") {
			creds.peer = &peer{rapid.IntRange(0, 2).Draw(t, "uid"), rapid.IntRange(0, 2).Draw(t, "gid")}
		}
		// This follows the documentation, not the code.
		var want []string
		for _, s := range setup.Sources {
			hisSocket := s.Socket != "" && creds.addr.owner == s.Name && creds.addr.uid != 7
			place := hisSocket || s.Socket == "" && creds.addr.owner == ""
			user := (s.UID == nil || creds.peer != nil && creds.peer.uid == *s.UID) && (s.GID == nil || creds.peer != nil && creds.peer.gid == *s.GID)
			token := s.TokenFile == creds.token || s.TokenFile == "" && hisSocket
			if place && user && token {
				want = append(want, s.Name)
			}
		}
		testkit.Require(t, len(want) <= 1, "%+v may be any of %q", creds, want)
		got, rejection := identify(creds, states)
		switch {
		case len(want) == 1:
			found++
			if got == nil || got.name != want[0] {
				t.Fatalf("%+v is not taken for %s", creds, want[0])
			}
		default:
			strange++
			testkit.Require(t, got == nil && rejection.Code == 401, "%+v is taken for %+v: %+v", creds, got, rejection)
		}
	})
	t.Logf("saw %d known and %d unknown clients", found, strange)
	testkit.Check(t, found != 0 && strange != 0, "one kind was never seen")
}

// A connected client has the rights that the new setup gives, and not those of the listener
// that it once used.
func TestConnectionOfARemovedSocketIsRejected(t *testing.T) {
	testkit.MustBeSame(t, os.Getuid(), 0, "run this test as root: it gives a socket to another user")
	root := 0
	for name, change := range map[string]func(*Source){
		"moved":            func(s *Source) { s.Socket += ".new" },
		"given to one":     func(s *Source) { s.UID = &root },
		"given to a group": func(s *Source) { s.GID = &root },
	} {
		t.Run(name, func(t *testing.T) {
			mine, still := Source{}, Source{}
			s, _ := onSockets(t, func(folder string) Setup {
				mine, still = own(folder, "disk-watch", disk), own(folder, "still")
				return Setup{Sources: []Source{mine, still}}
			})
			before, unchanged := newPoster(t, dialUnix(mine.Socket)), newPoster(t, dialUnix(still.Socket))
			heard := func(p *poster, as string, want int) {
				t.Helper()
				code, refusal, _ := p.post(status(as))
				testkit.Check(t, code == want, "%s: %d %v, want %d", as, code, refusal, want)
			}
			heard(before, "disk-watch", 204)
			heard(unchanged, "still", 204)
			change(&mine)
			testkit.Must(t, s.in.Apply(Setup{Sources: []Source{mine, still}}))
			heard(before, "disk-watch", 401)
			heard(unchanged, "still", 204)
			heard(newPoster(t, dialUnix(mine.Socket)), "disk-watch", 204)
		})
	}
}
