package testbed

import (
	"net"
	"sync"
)

// gate is a listener that can cut all its connections and refuse new ones.
type gate struct {
	net.Listener

	mu      sync.Mutex
	closed  bool
	refused int
	conns   map[net.Conn]struct{}
}

func newGate(l net.Listener) *gate {
	return &gate{Listener: l, conns: make(map[net.Conn]struct{})}
}

// Accept waits for the next accepted connection.
func (g *gate) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if admitted := g.admit(conn); admitted != nil {
			return admitted, nil
		}
	}
}

func (g *gate) admit(conn net.Conn) net.Conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		g.refused++
		reset(conn)
		return nil
	}
	g.conns[conn] = struct{}{}
	return &gatedConn{Conn: conn, gate: g}
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for conn := range g.conns {
		g.refused++
		reset(conn)
		delete(g.conns, conn)
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
}

func (g *gate) refusals() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused
}

// reset closes a connection with a reset: the other side gets an error at once.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// gatedConn removes itself from its gate when it is closed.
type gatedConn struct {
	net.Conn
	gate *gate
}

func (c *gatedConn) Close() error {
	c.gate.mu.Lock()
	delete(c.gate.conns, c.Conn)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}
