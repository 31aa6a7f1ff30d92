package helpers

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// journald starts a real one that sees its own folders in the place of /run and /var/log,
// and returns the folder of its journal and how to write to it.
func journald(t *testing.T) (folder string, write func(identifier, message string)) {
	t.Helper()
	const program = "/lib/systemd/systemd-journald"
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: apt-get install -y --no-install-recommends systemd", err)
	}
	home := t.TempDir()
	run, err := os.MkdirTemp("/dev/shm", "helpers-") // the path of a socket has little room
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	socket := filepath.Join(run, "systemd/journal/socket")
	for _, path := range []string{filepath.Dir(socket), filepath.Join(home, "var/journal")} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := strings.NewReplacer("HOME", home, "RUN", run).Replace(`set -e
echo 0123456789abcdef0123456789abcdef > HOME/machine-id
mount --bind RUN /run
mount --bind HOME/var /var/log
mount --bind HOME/machine-id /etc/machine-id
mount -t tmpfs tmpfs /etc/systemd
printf '[Journal]\nStorage=volatile\nAudit=no\nReadKMsg=no\nRateLimitIntervalSec=0\n' > /etc/systemd/journald.conf
exec ` + program)
	var said bytes.Buffer
	daemon := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-c", script)
	daemon.Stderr = &said
	daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	var conn net.Conn
	eventually(t, "journald listens", func() bool {
		conn, err = net.Dial("unixgram", socket)
		return err == nil
	})
	t.Cleanup(func() { conn.Close() })
	return filepath.Join(run, "log/journal"), func(identifier, message string) {
		t.Helper()
		if _, err := conn.Write([]byte("SYSLOG_IDENTIFIER=" + identifier + "\nMESSAGE=" + message + "\n")); err != nil {
			t.Fatalf("writing to journald: %v %s", err, said.String())
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20s: %s", what)
		}
	}
}
