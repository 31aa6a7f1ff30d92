package intake

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// caller is a connection, and what is known of who is at its other end.
type caller struct {
	net.Conn

	door *door
	peer *peer         // nil if the kernel does not say
	left chan struct{} // closed when it has gone
	body []byte

	mu   sync.Mutex
	desk *desk // that the caller has shown to be at, nil as long as it has not
	gone bool
}

// peer is the user that a process runs as.
type peer struct{ uid, gid int }

// peerOf asks the kernel who is at the other end.
func peerOf(conn net.Conn) *peer {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil
	}
	var known *peer
	err = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			known = &peer{int(cred.Uid), int(cred.Gid)}
		}
	})
	if err != nil {
		return nil
	}
	return known
}

// callerKey is where net/http hands a connection to the handler of its requests, which
// has no other way to know it.
type callerKey struct{}

func withCaller(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, callerKey{}, conn)
}

func callerOf(ctx context.Context) (*caller, error) {
	c, ok := ctx.Value(callerKey{}).(*caller)
	if !ok {
		return nil, errors.New("a request without its connection")
	}
	return c, nil
}

// Close ends the connection, and makes room for another.
func (c *caller) Close() error {
	c.door.lobby.leave(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rise()
	if !c.gone {
		c.gone = true
		close(c.left)
	}
	return c.Conn.Close()
}

// sit notes at which desk the caller is. It says whether there is room; if not, it stays
// where it is counted already, in the lobby or at another desk.
func (c *caller) sit(at *desk) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.desk == at || c.gone {
		return !c.gone
	}
	at.mu.Lock()
	room := at.callers < at.source.Connections
	if room {
		at.callers++
	}
	at.mu.Unlock()
	if !room {
		return false
	}
	c.door.lobby.leave(c)
	c.rise() // with another token it is another source
	c.desk = at
	return true
}

// pause keeps the caller waiting, unless it goes.
func (c *caller) pause(ctx context.Context, wait time.Duration) {
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-c.left:
	}
}

// rise gives up the place at a desk.
func (c *caller) rise() {
	if c.desk == nil {
		return
	}
	c.desk.mu.Lock()
	c.desk.callers--
	c.desk.mu.Unlock()
	c.desk = nil
}

// lobby is where those wait who have not said yet who they are. It has so many places.
// When it is full somebody has to go: of the user who has the most there, whoever has been
// there longest, so that a crowd of one user keeps out no other.
type lobby struct {
	places int

	mu      sync.Mutex
	waiting []*caller // from the first to come on
}

// enter lets a caller in, and shows out another if there is no place.
func (l *lobby) enter(c *caller) {
	l.mu.Lock()
	l.waiting = append(l.waiting, c)
	var out *caller
	if len(l.waiting) > l.places {
		i := crowding(l.waiting)
		out = l.waiting[i]
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.mu.Unlock()
	if out != nil {
		_ = out.Close() // whatever it says, it is gone
	}
}

// crowding returns which of some callers is the first of the user who has the most there.
func crowding(waiting []*caller) (first int) {
	users := map[int]int{}
	for _, c := range waiting {
		users[c.user()]++
	}
	for i, c := range waiting {
		if users[c.user()] > users[waiting[first].user()] {
			first = i
		}
	}
	return first
}

// user is that of the caller, the same one for all of whom nothing is known.
func (c *caller) user() int {
	if c.peer == nil {
		return -1
	}
	return c.peer.uid
}

func (l *lobby) leave(c *caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = slices.DeleteFunc(l.waiting, func(other *caller) bool { return other == c })
}

// door is a listener whose connections are callers.
type door struct {
	net.Listener

	at    doorway
	lobby *lobby
}

// missed says what is wrong if nobody finds the door any more.
func (d *door) missed() error {
	if s, ok := d.Listener.(*socket); ok {
		return s.missed()
	}
	return nil
}

// Accept waits for the next caller.
func (d *door) Accept() (net.Conn, error) {
	conn, err := d.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // by its type the server knows one that passes, such as too many open files
	}
	c := &caller{Conn: conn, door: d, peer: peerOf(conn), left: make(chan struct{})}
	// Without a pause, however crowded: those of all users wait in one queue of the kernel.
	d.lobby.enter(c)
	return c, nil
}
