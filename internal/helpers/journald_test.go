package helpers

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// journald starts a real journald with its own folders instead of /run and /var/log. It returns the
// folder of the journal and two functions to write to it. journald attributes this process, and
// lines from write, to kubelet.service. Lines from other are attributed to the first process.
func journald(t *testing.T) (folder string, write, other func(identifier, message string)) {
	t.Helper()
	const program = "/lib/systemd/systemd-journald"
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: apt-get install -y --no-install-recommends systemd", err)
	}
	home := t.TempDir()
	run, err := os.MkdirTemp("/dev/shm", "helpers-") // the path of a socket has little room
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(run) })
	socket := filepath.Join(run, "systemd/journal/socket")
	for _, path := range []string{filepath.Dir(socket), filepath.Join(home, "var/journal")} {
		testkit.Must(t, os.MkdirAll(path, 0o755))
	}
	for name, cgroup := range map[string]string{"cgroup": "/system.slice/kubelet.service", "cgroup-1": "/init.scope"} {
		testkit.Must(t, os.WriteFile(filepath.Join(home, name), []byte("1:name=systemd:"+cgroup+"\n0::"+cgroup+"\n"), 0o600))
	}
	script := strings.NewReplacer("HOME", home, "RUN", run, "PID", strconv.Itoa(os.Getpid())).Replace(`set -e
mount --bind HOME/cgroup /proc/PID/cgroup
mount --bind HOME/cgroup-1 /proc/1/cgroup
echo 0123456789abcdef0123456789abcdef > HOME/machine-id
mount --bind RUN /run
mount --bind HOME/var /var/log
mount --bind HOME/machine-id /etc/machine-id
mount -t tmpfs tmpfs /etc/systemd
printf '[Journal]\nStorage=volatile\nAudit=no\nReadKMsg=no\nRateLimitIntervalSec=0\n' > /etc/systemd/journald.conf
exec ` + program)
	daemon := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-c", script)
	daemon.Stderr = t.Output()
	daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	testkit.Must(t, daemon.Start())
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	var conn *net.UnixConn
	testkit.Until(t, "journald listens", func() bool {
		conn, err = net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
		return err == nil
	})
	t.Cleanup(func() { conn.Close() })
	as := func(pid int) func(identifier, message string) {
		credentials := syscall.UnixCredentials(&syscall.Ucred{Pid: int32(pid), Uid: 0, Gid: 0})
		return func(identifier, message string) {
			t.Helper()
			entry := []byte("SYSLOG_IDENTIFIER=" + identifier + "\nMESSAGE=" + message + "\n")
			err := send(conn, entry, credentials)
			testkit.Require(t, err == nil, "writing to journald: %v", err)
		}
	}
	return filepath.Join(run, "log/journal"), as(os.Getpid()), as(1)
}

// send writes to a socket with the credentials of a process.
func send(conn *net.UnixConn, entry, credentials []byte) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		failed = syscall.Sendmsg(int(fd), entry, credentials, nil, 0)
		return !errors.Is(failed, syscall.EAGAIN)
	})
	return errors.Join(err, failed)
}
