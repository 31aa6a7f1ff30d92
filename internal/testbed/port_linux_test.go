package testbed

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestPort(t *testing.T) {
	held := testkit.Value(holdPort()).Must(t)
	defer held.release()

	t.Run("that is reserved is free for its child", func(t *testing.T) {
		for range 2 { // including a restart
			child := testkit.Value(net.Listen("tcp", held.address())).Must(t)
			if other, err := net.Listen("tcp", held.address()); err == nil {
				_ = other.Close()
				t.Error("two children listen on one port")
			}
			testkit.Must(t, child.Close())
		}
	})

	t.Run("that is reserved is not available to other processes", func(t *testing.T) {
		other := testkit.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)).Must(t)
		defer unix.Close(other)
		if err := unix.Bind(other, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: held.number}); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("error %v", err)
		}
	})

	t.Run("that is reserved does not answer", func(t *testing.T) {
		if conn, err := net.Dial("tcp", held.address()); err == nil {
			_ = conn.Close()
			t.Error("a process listens on a port that is only reserved")
		}
	})
}
