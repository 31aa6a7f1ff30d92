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

// connection is a client connection, and what is known of the client.
type connection struct {
	net.Conn

	listener *sourceListener
	peer     *peer         // nil if the kernel does not provide it
	closed   chan struct{} // closed with the connection
	body     []byte

	mu       sync.Mutex
	source   *sourceState // the authenticated source, nil before that
	isClosed bool
}

// peer is the user and group of a client process.
type peer struct{ uid, gid int }

// peerOf asks the kernel for the user and group of the client.
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

// connectionKey is the context key of the connection. net/http offers no other way to pass it
// to the handler.
type connectionKey struct{}

func withConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, conn)
}

func connectionOf(ctx context.Context) (*connection, error) {
	c, ok := ctx.Value(connectionKey{}).(*connection)
	if !ok {
		return nil, errors.New("the request has no connection")
	}
	return c, nil
}

// Close closes the connection, and frees its place.
func (c *connection) Close() error {
	c.listener.limiter.remove(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unassign()
	if !c.isClosed {
		c.isClosed = true
		close(c.closed)
	}
	return c.Conn.Close()
}

// assign counts the connection against the limit of a source. If the limit is reached, it
// returns false and the connection stays counted where it was.
func (c *connection) assign(src *sourceState) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.source == src || c.isClosed {
		return !c.isClosed
	}
	src.mu.Lock()
	room := src.connections < src.source.Connections
	if room {
		src.connections++
	}
	src.mu.Unlock()
	if !room {
		return false
	}
	c.listener.limiter.remove(c)
	c.unassign() // a different token means a different source
	c.source = src
	return true
}

// pause delays the client, unless it closes the connection.
func (c *connection) pause(ctx context.Context, wait time.Duration) {
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-c.closed:
	}
}

// unassign frees the place at a source.
func (c *connection) unassign() {
	if c.source == nil {
		return
	}
	c.source.mu.Lock()
	c.source.connections--
	c.source.mu.Unlock()
	c.source = nil
}

// connLimiter limits the connections that have not authenticated. When the limit is exceeded,
// it closes the oldest connection of the user with the most connections, so that one user
// cannot keep out others.
type connLimiter struct {
	limit int

	mu      sync.Mutex
	pending []*connection // oldest first
}

// add adds a connection, and closes another one if the limit is exceeded.
func (l *connLimiter) add(c *connection) {
	l.mu.Lock()
	l.pending = append(l.pending, c)
	var out *connection
	if len(l.pending) > l.limit {
		i := toEvict(l.pending)
		out = l.pending[i]
		l.pending = slices.Delete(l.pending, i, i+1)
	}
	l.mu.Unlock()
	if out != nil {
		_ = out.Close() // the connection is gone anyway
	}
}

// toEvict returns the index of the oldest connection of the user with the most connections.
func toEvict(waiting []*connection) (first int) {
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

// user returns the user of the client, or -1 if it is unknown.
func (c *connection) user() int {
	if c.peer == nil {
		return -1
	}
	return c.peer.uid
}

func (l *connLimiter) remove(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = slices.DeleteFunc(l.pending, func(other *connection) bool { return other == c })
}

// sourceListener is a listener that returns connections of type connection.
type sourceListener struct {
	net.Listener

	addr    listenAddr
	limiter *connLimiter
}

// checkFile returns an error if clients can no longer find the socket.
func (l *sourceListener) checkFile() error {
	if s, ok := l.Listener.(*socket); ok {
		return s.checkFile()
	}
	return nil
}

// Accept waits for the next connection.
func (l *sourceListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // net/http retries temporary errors by their type, for example too many open files
	}
	c := &connection{Conn: conn, listener: l, peer: peerOf(conn), closed: make(chan struct{})}
	// Never delay here: the connections of all users wait in one queue of the kernel.
	l.limiter.add(c)
	return c, nil
}
