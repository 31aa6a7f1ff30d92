package intake

import (
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestRemovedSocketIsCreatedAgain(t *testing.T) {
	s, folder := onSockets(t, func(folder string) Setup { return Setup{Sources: []Source{own(folder, "disk-watch", disk)}} })
	path := filepath.Join(folder, "disk-watch.sock")
	heard := func() {
		t.Helper()
		p := newPoster(t, dialUnix(path))
		p.expect(204, status("disk-watch"))
		p.client.CloseIdleConnections()
	}
	heard()
	testkit.Must(t, os.Remove(path))
	s.in.updateListeners()
	heard()
	s.in.updateListeners() // and stays
	heard()

	testkit.Must(t, os.Remove(path))
	theirs := testkit.Value(net.Listen("unix", path)).Must(t)
	s.in.updateListeners()
	why := s.in.Problems()
	testkit.Check(t, len(why) == 1 && strings.Contains(why[0], "another process listens on "+path), "%q", why)
	_, err := os.Lstat(path)
	testkit.Check(t, err == nil, "the socket of another program is gone: %v", err)
	testkit.Must(t, theirs.Close())
	s.in.updateListeners()
	heard()
	why = s.in.Problems()
	testkit.Check(t, len(why) == 0, "%q", why)

	testkit.Must(t, os.RemoveAll(folder)) // with its folder
	s.in.updateListeners()
	heard()
}

// Between creating a socket and setting its owner, another user could connect, or replace it
// with a link.
func TestNewSocketIsNeverOpenToOtherUsers(t *testing.T) {
	before := syscall.Umask(0)
	defer syscall.Umask(before)
	folder := t.TempDir()
	path := filepath.Join(folder, "s.sock")
	listener := testkit.Value(bind(path)).Must(t)
	defer listener.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	syscall.Umask(0o777)
	addr := listenAddr{network: "unix", address: path, owner: "disk-watch", uid: 4001, gid: 4002}
	testkit.Value(addr.setAccess()).Must(t)
	info := testkit.Value(os.Lstat(path)).Must(t)
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Uid != 4001 || owner.Gid != 4002 || info.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("%v, %+v", info.Mode(), owner)
	}
	precious := filepath.Join(folder, "precious")
	theirs := testkit.Value(net.Listen("unix", precious)).Must(t)
	defer theirs.Close()
	testkit.Must(t, os.Chmod(precious, 0o640))
	testkit.Must(t, os.Remove(path))
	testkit.Must(t, os.Symlink(precious, path))
	_, err := addr.setAccess()
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "no longer a socket"), "a link is given to a source: %v", err)
	info = testkit.Value(os.Lstat(precious)).Must(t)
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Uid != 0 || info.Mode() != fs.ModeSocket|0o640 {
		t.Errorf("where the link leads is %v, %+v", info.Mode(), owner)
	}
}

// failingListener is a listener of a process that temporarily has too many open files.
type failingListener struct {
	net.Listener

	asked int
}

func (s *failingListener) Accept() (net.Conn, error) {
	if s.asked++; s.asked == 1 {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return nil, net.ErrClosed
}

func (s *failingListener) Close() error { return nil }

func TestListenerSurvivesTooManyOpenFiles(t *testing.T) {
	at := &failingListener{}
	server := &http.Server{ErrorLog: newFixture(t).begin("", t.Output()).server.ErrorLog}
	err := server.Serve(&sourceListener{Listener: at, limiter: &connLimiter{limit: 1}})
	testkit.Check(t, at.asked == 2 && errors.Is(err, net.ErrClosed), "it was asked %d times, and ends with %v", at.asked, err)
}

// withoutCapabilities calls a function as root without capabilities, like the agent without
// privileges.
func withoutCapabilities(t *testing.T, do func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, so no other goroutine loses capabilities
		none := [2]unix.CapUserData{}
		err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])
		if err == nil {
			do()
		}
		done <- err
	}()
	testkit.Must(t, <-done)
}

func TestRootWithoutCapabilitiesOpensSocketsForOtherUsers(t *testing.T) {
	testkit.MustBeSame(t, os.Getuid(), 0, "run this test as root: it reports as several users")
	folder := publicFolder(t)
	program := daemon(t, folder)
	user, group := 4004, 4005
	with := func(name string, change func(*Source)) Source {
		s := own(folder, name)
		change(&s)
		return s
	}
	s := newFixture(t)
	s.begin("", t.Output())
	open := s.in.open
	s.in.open = func(addr listenAddr) (listener net.Listener, err error) {
		withoutCapabilities(t, func() { listener, err = open(addr) })
		return listener, err
	}
	testkit.Must(t, s.in.Apply(Setup{Sources: []Source{
		with("root", func(*Source) {}),
		with("user", func(s *Source) { s.UID = &user }),
		with("group", func(s *Source) { s.GID = &group }),
		with("both", func(s *Source) { s.UID, s.GID = &user, &group }),
	}}))
	defer s.in.shutdown(t.Context())
	why := s.in.Problems()
	testkit.Require(t, len(why) == 0, "%q", why)
	const known, unauthorized, noEntry = 204, 401, 201
	for _, test := range []struct {
		at       string
		uid, gid uint32
		want     int
	}{
		{"root", 0, 0, known},
		{"root", 4004, 4005, noEntry},
		{"user", 4004, 1, known},
		{"user", 4000, 4005, unauthorized},
		{"user", 0, 0, unauthorized},
		{"group", 4000, 4005, known},
		{"group", 4004, 1, unauthorized},
		{"both", 4004, 4005, known},
		{"both", 4004, 1, unauthorized},
	} {
		testkit.Same(t, as(t, program, test.uid, test.gid, filepath.Join(folder, test.at+".sock"), status(test.at), ""), test.want,
			"%d:%d at the socket of %s", test.uid, test.gid, test.at)
	}
}
