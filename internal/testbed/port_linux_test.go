package testbed

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPort(t *testing.T) {
	held := must(holdPort())(t)
	defer held.release()

	t.Run("that is held is free for the child that it is held for", func(t *testing.T) {
		for range 2 { // a restart included
			child, err := net.Listen("tcp", held.address())
			if err != nil {
				t.Fatal(err)
			}
			if other, err := net.Listen("tcp", held.address()); err == nil {
				_ = other.Close()
				t.Error("two children listen on one port")
			}
			if err := child.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})

	t.Run("that is held is taken for everybody else", func(t *testing.T) {
		stranger := must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
		defer unix.Close(stranger)
		if err := unix.Bind(stranger, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: held.number}); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("error %v", err)
		}
	})

	t.Run("that is held answers nobody", func(t *testing.T) {
		if conn, err := net.Dial("tcp", held.address()); err == nil {
			_ = conn.Close()
			t.Error("somebody listens on a port that is only held")
		}
	})
}
