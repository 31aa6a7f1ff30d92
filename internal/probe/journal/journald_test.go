package journal_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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

const (
	program = "/lib/systemd/systemd-journald"
	machine = "0123456789abcdef0123456789abcdef"
)

// journald is a real journald in its own mount namespace. It sees its own directories as
// /run and /var/log, and the machine does not see it.
type journald struct {
	t      testing.TB
	folder string
	run    string
	env    []string
	cmd    *exec.Cmd
	out    testkit.Log
	socket *net.UnixConn
	marks  int
}

// newJournald creates the directories. The settings go below [Journal], the environment to
// the process.
func newJournald(tb testing.TB, settings string, env ...string) *journald {
	tb.Helper()
	for _, path := range []string{program, "/usr/bin/journalctl", "/usr/bin/unshare"} {
		if _, err := os.Stat(path); err != nil {
			tb.Fatalf("%v: the tests of the journal need the real journald, run as root: apt-get install -y --no-install-recommends systemd", err)
		}
	}
	j := &journald{t: tb, folder: tb.TempDir(), env: env}
	// In memory, because journald requires it for /run. The path of a socket is too short for
	// the name of a test.
	run := testkit.Value(os.MkdirTemp("/dev/shm", "journal-")).Must(tb)
	j.run = run
	tb.Cleanup(func() {
		j.stop()
		testkit.Must(tb, os.RemoveAll(run))
	})
	for _, path := range []string{filepath.Dir(j.socketPath()), j.path("var")} {
		testkit.Must(tb, os.MkdirAll(path, 0o755))
	}
	j.write("machine-id", machine+"\n")
	j.write("conf", "[Journal]\nAudit=no\nRateLimitIntervalSec=0\nForwardToWall=no\n"+settings+"\n")
	j.write("start", strings.NewReplacer("FOLDER", j.folder, "RUN", run).Replace(`set -e
mount --bind RUN /run
mount --bind FOLDER/var /var/log
mount --bind FOLDER/machine-id /etc/machine-id
mount -t tmpfs tmpfs /etc/systemd
cp FOLDER/conf /etc/systemd/journald.conf
exec `+program+"\n"))
	return j
}

func (j *journald) write(name, text string) {
	j.t.Helper()
	testkit.Must(j.t, os.WriteFile(filepath.Join(j.folder, name), []byte(text), 0o644))
}

// startJournald starts a journald with these settings.
func startJournald(tb testing.TB, settings string, env ...string) *journald {
	tb.Helper()
	j := newJournald(tb, settings, env...)
	j.start()
	return j
}

func (j *journald) start() {
	j.t.Helper()
	_ = os.Remove(j.socketPath())
	j.cmd = exec.CommandContext(j.t.Context(), "unshare", "--mount", "--propagation", "private", "sh", j.path("start"))
	j.cmd.Env = append(os.Environ(), j.env...)
	j.cmd.Stdout, j.cmd.Stderr = &j.out, &j.out
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	testkit.Must(j.t, j.cmd.Start())
	testkit.Until(j.t, "journald listens", func() bool {
		socket, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: j.socketPath(), Net: "unixgram"})
		j.socket = socket
		return err == nil
	})
}

func (j *journald) path(name string) string { return filepath.Join(j.folder, name) }

func (j *journald) socketPath() string { return filepath.Join(j.run, "systemd/journal/socket") }

// volatile and persistent are the directories of journald.
func (j *journald) volatile() string   { return filepath.Join(j.run, "log/journal") }
func (j *journald) persistent() string { return j.path("var/journal") }

func (j *journald) signal(s syscall.Signal) {
	j.t.Helper()
	err := j.cmd.Process.Signal(s)
	testkit.Require(j.t, err == nil, "signalling journald: %v\n%s", err, &j.out)
}

// sync waits until journald has written everything that was sent.
func (j *journald) sync() {
	j.t.Helper()
	j.marks++
	mark := fmt.Sprintf("mark %d", j.marks)
	j.say("sync", mark)
	testkit.Until(j.t, "journald has written all", func() bool {
		for _, folder := range []string{j.volatile(), j.persistent()} {
			if _, err := os.Stat(folder); err != nil {
				continue
			}
			if list := j.journalctl(folder, "sync"); len(list) > 0 && list[len(list)-1].message == mark {
				return true
			}
		}
		return false
	})
}

// kill kills journald, so that it cannot close its files.
func (j *journald) kill() {
	j.t.Helper()
	j.sync()
	j.signal(syscall.SIGKILL)
	j.wait()
}

func (j *journald) stop() {
	if j.cmd != nil {
		_ = j.cmd.Process.Signal(syscall.SIGTERM)
		j.wait()
	}
}

func (j *journald) wait() {
	_ = j.socket.Close()
	_ = j.cmd.Wait()
	j.cmd = nil
}

// rotate makes journald rotate its files, and waits for it.
func (j *journald) rotate() {
	j.t.Helper()
	j.sync()
	before := j.files()
	j.signal(syscall.SIGUSR2)
	testkit.Until(j.t, "the files are rotated", func() bool { return j.files() > before })
}

func (j *journald) files() int { return len(j.glob("*.journal*")) }

// glob returns the journal files that match a pattern.
func (j *journald) glob(name string) []string {
	j.t.Helper()
	var list []string
	for _, folder := range []string{j.volatile(), j.persistent()} {
		names := testkit.Value(filepath.Glob(filepath.Join(folder, machine, name))).Must(j.t)
		list = append(list, names...)
	}
	return list
}

// remove deletes files, like journald does when there are too many.
func (j *journald) remove(name string) {
	j.t.Helper()
	paths := j.glob(name)
	testkit.Require(j.t, len(paths) != 0, "no file %s to delete", name)
	for _, path := range paths {
		// Journald itself deletes empty archived files.
		err := os.Remove(path)
		testkit.Require(j.t, err == nil || errors.Is(err, fs.ErrNotExist), "%v", err)
	}
}

// patch overwrites a part of a file.
func (j *journald) patch(name string, at int64, text []byte) {
	j.t.Helper()
	for _, path := range j.glob(name) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		testkit.Must(j.t, err)
		_, err = f.WriteAt(text, at)
		testkit.Must(j.t, errors.Join(err, f.Close()))
	}
}

// flush makes journald move the journal from /run to /var.
func (j *journald) flush() {
	j.t.Helper()
	testkit.Must(j.t, os.MkdirAll(j.persistent(), 0o755))
	j.sync()
	j.signal(syscall.SIGUSR1)
	testkit.Until(j.t, "the journal is flushed", func() bool {
		_, err := os.Stat(filepath.Join(j.run, "systemd/journal/flushed"))
		return err == nil
	})
}

// sayAs writes a message as a user.
func (j *journald) sayAs(user uint32, identifier, message string) {
	j.t.Helper()
	text := fmt.Sprintf("MESSAGE=%s\nSYSLOG_IDENTIFIER=%s\n", message, identifier)
	credentials := syscall.UnixCredentials(&syscall.Ucred{Pid: int32(os.Getpid()), Uid: user, Gid: user})
	connection, err := j.socket.SyscallConn()
	testkit.Must(j.t, err)
	var failed error
	err = connection.Write(func(fd uintptr) bool {
		failed = syscall.Sendmsg(int(fd), []byte(text), credentials, nil, 0)
		return !errors.Is(failed, syscall.EAGAIN)
	})
	testkit.Must(j.t, errors.Join(err, failed))
}

// field is a field of an entry.
type field struct{ name, value string }

// send writes an entry in journald's native protocol.
func (j *journald) send(fields ...field) {
	j.t.Helper()
	var b []byte
	for _, f := range fields {
		b = append(b, f.name...)
		b = append(b, '\n')
		b = binary.LittleEndian.AppendUint64(b, uint64(len(f.value)))
		b = append(b, f.value...)
		b = append(b, '\n')
	}
	_, err := j.socket.Write(b)
	testkit.Require(j.t, err == nil, "writing to journald: %v\n%s", err, &j.out)
}

// say writes a message with an identifier.
func (j *journald) say(identifier, message string) {
	j.t.Helper()
	j.send(field{"MESSAGE", message}, field{"SYSLOG_IDENTIFIER", identifier}, field{"PRIORITY", "4"}, field{"SYSLOG_FACILITY", "3"})
}

// journalctlEntry is an entry in the output of journalctl.
type journalctlEntry struct {
	message  string
	realtime uint64
	priority string
	facility string
}

// journalctl returns its output for a directory, filtered by an identifier if that is not
// empty.
func (j *journald) journalctl(folder, identifier string) []journalctlEntry {
	j.t.Helper()
	args := []string{"--directory", folder, "--all", "--quiet", "--output", "json"}
	if identifier != "" {
		args = append(args, "SYSLOG_IDENTIFIER="+identifier)
	}
	cmd := exec.CommandContext(j.t.Context(), "journalctl", args...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	testkit.Require(j.t, err == nil, "journalctl: %v\n%s", err, complaints.String())
	var list []journalctlEntry
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e map[string]any
		testkit.Must(j.t, json.Unmarshal(lines.Bytes(), &e))
		message, ok := text(e["MESSAGE"])
		if !ok {
			continue
		}
		var one journalctlEntry
		one.message = message
		one.priority, _ = text(e["PRIORITY"])
		one.facility, _ = text(e["SYSLOG_FACILITY"])
		stamp, _ := text(e["__REALTIME_TIMESTAMP"])
		one.realtime = testkit.Value(strconv.ParseUint(stamp, 10, 64)).Must(j.t)
		list = append(list, one)
	}
	return list
}

// text returns the text of a field: a string, or an array of numbers if it is not
// printable.
func text(value any) (string, bool) {
	switch value := value.(type) {
	case string:
		return value, true
	case []any:
		b := make([]byte, 0, len(value))
		for _, n := range value {
			number, ok := n.(float64)
			if !ok { // a field that occurs twice
				return text(value[0])
			}
			b = append(b, byte(number))
		}
		return string(b), true
	}
	return "", false
}

func messages(n int, format string) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(format, i)
	}
	return list
}
