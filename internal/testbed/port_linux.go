package testbed

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// port is a loopback TCP port that is reserved for a child process.
//
// Finding a free port, closing it and hoping that the child gets it is a race. Many
// clusters side by side lose it sooner or later, and so does a restarted server. So this
// process keeps a bound socket on the port that does not listen. The child can bind the
// port as well, because both sockets set SO_REUSEADDR (Go's listeners always do), and is
// the only process that listens. When the kernel picks a free port for another process,
// it skips bound ports.
type port struct {
	fd     int
	number int
}

func holdPort() (*port, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("holding a port: %w", err)
	}
	number, err := bindLoopback(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("holding a port: %w", err)
	}
	return &port{fd: fd, number: number}, nil
}

func bindLoopback(fd int) (int, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	return bound.(*unix.SockaddrInet4).Port, nil
}

func (p *port) release() { _ = unix.Close(p.fd) }

func (p *port) address() string { return fmt.Sprintf("127.0.0.1:%d", p.number) }
