package intake

import (
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestASocketThatSomebodyHasRemovedIsMadeAgain(t *testing.T) {
	s, folder := onSockets(t, func(folder string) Setup { return Setup{Sources: []Source{own(folder, "disk-watch", disk)}} })
	path := filepath.Join(folder, "disk-watch.sock")
	heard := func() {
		t.Helper()
		p := newPoster(t, dialUnix(path))
		if code, refusal, _ := p.post(status("disk-watch")); code != 204 {
			t.Error(code, refusal)
		}
		p.client.CloseIdleConnections()
	}
	heard()
	must(t, os.Remove(path))
	s.in.arrange()
	heard()
	s.in.arrange() // and stays
	heard()

	must(t, os.Remove(path))
	theirs, err := net.Listen("unix", path)
	must(t, err)
	s.in.arrange()
	if why := s.in.Ailments(); len(why) != 1 || !strings.Contains(why[0], "somebody listens on "+path) {
		t.Errorf("%q", why)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the socket of somebody else is gone: %v", err)
	}
	must(t, theirs.Close())
	s.in.arrange()
	heard()
	if why := s.in.Ailments(); len(why) > 0 {
		t.Errorf("%q", why)
	}

	must(t, os.RemoveAll(folder)) // with its folder
	s.in.arrange()
	heard()
}

// Between the making of a socket and its giving away, somebody might connect, or put a
// link in its place.
func TestASocketIsGivenToNobodyElseNotEvenForAMoment(t *testing.T) {
	before := syscall.Umask(0)
	defer syscall.Umask(before)
	folder := t.TempDir()
	path := filepath.Join(folder, "s.sock")
	listener, err := bind(path)
	must(t, err)
	defer listener.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	syscall.Umask(0o777)
	at := doorway{network: "unix", address: path, own: "disk-watch", uid: 4001, gid: 4002}
	if _, err := at.admit(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	must(t, err)
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Uid != 4001 || owner.Gid != 4002 || info.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("%v, %+v", info.Mode(), owner)
	}
	precious := filepath.Join(folder, "precious")
	theirs, err := net.Listen("unix", precious)
	must(t, err)
	defer theirs.Close()
	must(t, os.Chmod(precious, 0o640))
	must(t, os.Remove(path))
	must(t, os.Symlink(precious, path))
	if _, err := at.admit(); err == nil || !strings.Contains(err.Error(), "no socket any more") {
		t.Errorf("a link is given to a source: %v", err)
	}
	info, err = os.Lstat(precious)
	must(t, err)
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Uid != 0 || info.Mode() != fs.ModeSocket|0o640 {
		t.Errorf("where the link leads is %v, %+v", info.Mode(), owner)
	}
}

// short is a listener of a process that has no file left for a moment.
type short struct {
	net.Listener

	asked int
}

func (s *short) Accept() (net.Conn, error) {
	if s.asked++; s.asked == 1 {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return nil, net.ErrClosed
}

func (s *short) Close() error { return nil }

func TestWhenThereIsNoFileLeftForAMomentTheDoorStaysOpen(t *testing.T) {
	at := &short{}
	server := &http.Server{ErrorLog: newStage(t).begin("", t.Output()).server.ErrorLog}
	if err := server.Serve(&door{Listener: at, lobby: &lobby{places: 1}}); at.asked != 2 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("it was asked %d times, and ends with %v", at.asked, err)
	}
}
