package helpers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	shipped "github.com/resourcestack/autohealer/config"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/procfs"
	"github.com/resourcestack/autohealer/internal/probe/unit"
	"github.com/resourcestack/autohealer/internal/probe/unit/unittest"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// call runs a program on a node and returns its exit code and its line.
func call(t *testing.T, n node, name string, args ...string) (int, string) {
	t.Helper()
	var out strings.Builder
	code := programs()[name](n, args, &out)
	line := out.String()
	testkit.Check(t, strings.Count(line, "\n") == 1 && strings.HasSuffix(line, "\n"), "%s %q printed %q, which is not one line", name, args, line)
	return code, strings.TrimSpace(line)
}

// here returns a node with this systemd and environment.
func here(systemd *unittest.Systemd, env map[string]string) node {
	n := node{
		getenv: func(name string) string { return env[name] }, proc: "/proc", now: time.Now,
		units: unit.New(unit.Config{Bus: "/nowhere/bus", Private: "/nowhere/private"}),
		boot:  func() (procfs.Boot, error) { return procfs.Boot{ID: "b", Time: time.Now().Add(-time.Hour)}, nil },
	}
	if systemd != nil {
		n.units = unit.New(systemd.Config())
	}
	return n
}

// served returns an environment in which the kubelet and kube-proxy answer with a status.
func served(t *testing.T, status int) map[string]string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	t.Cleanup(server.Close)
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	testkit.Must(t, err)
	return map[string]string{"HOST_ADDRESS": host, "KUBELET_PORT": port, "KUBEPROXY_PORT": port}
}

func TestEveryProgramOfTheOriginalFilesExists(t *testing.T) {
	paths, err := filepath.Glob("../probe/config/testdata/node-problem-detector/*.json")
	testkit.Require(t, err == nil && len(paths) != 0, "no files: %v", err)
	seen := map[string]bool{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		testkit.Must(t, err)
		var file struct {
			Plugin string
			Rules  []struct {
				Path string
				Args []string
			}
		}
		if err := json.Unmarshal(text, &file); err != nil || file.Plugin != "custom" {
			continue
		}
		for _, rule := range file.Rules {
			name := filepath.Base(rule.Path)
			_, ok := Program(rule.Path)
			testkit.Check(t, ok, "%s calls %s", path, rule.Path)
			seen[name] = true
			switch name {
			case "health-checker":
				_, err = parseHealth(rule.Args, io.Discard)
			case "log-counter":
				_, err = parseCounter(rule.Args, io.Discard)
			}
			testkit.Check(t, err == nil, "%s: %s %q: %v", path, name, rule.Args, err)
		}
	}
	seen["sh"] = true // which no file calls, but charts
	testkit.Same(t, len(seen), len(programs()), "the number of programs that they call")
	for _, name := range []string{"autohealer-agent", "", "/", "bash"} {
		_, ok := Program(name)
		testkit.Check(t, !ok, "%q is a program", name)
	}
}

// expect calls a program, and checks its exit code and a part of its line.
func expect(t *testing.T, want int, says string, n node, program string, args ...string) {
	t.Helper()
	code, line := call(t, n, program, args...)
	testkit.Check(t, code == want && strings.Contains(line, says), "%s %q: %d %q, want %d %q", program, args, code, line, want, says)
}

func TestHealthChecker(t *testing.T) {
	old := unittest.Unit{Load: "loaded", Active: "active", Started: time.Now().Add(-time.Hour), Changed: time.Now().Add(-time.Hour)}
	young := unittest.Unit{Load: "loaded", Active: "active", Started: time.Now(), Changed: time.Now()}
	for _, test := range []struct {
		name      string
		status    int
		unit      unittest.Unit
		args      []string
		want      int
		says      string
		restarted bool
	}{
		{"healthy", 200, old, []string{"--component=kubelet"}, 0, "kubelet is well", false},
		{"the kubelet is the usual component", 200, old, nil, 0, "kubelet is well", false},
		{"unhealthy, and restarted by default", 500, old, []string{"--component=kubelet"}, 1, "kubelet.service was restarted", true},
		{"unhealthy, and not restarted within its cool-down", 500, young, []string{"--component=kubelet", "--cooldown-time=1m"}, 1, "after a cool-down of 1m0s", false},
		{"unhealthy, and not restarted on request", 500, old, []string{"--component=kubelet", "--enable-repair=false"}, 1, "kubelet answers 500", false},
		{"another unit", 500, old, []string{"--component", "kube-proxy", "--service", "kubelet"}, 1, "kubelet.service was restarted", true},
		{"the unit's old flag", 500, old, []string{"--component=kube-proxy", "--systemd-service=kubelet"}, 1, "kubelet.service was restarted", true},
		{"a unit that is not there", 500, old, []string{"--component=kube-proxy"}, 1, "no unit kube-proxy.service", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			systemd := unittest.Start(t)
			systemd.Set("kubelet.service", test.unit)
			expect(t, test.want, test.says, here(systemd, served(t, test.status)), "health-checker", test.args...)
			restarted := len(systemd.Restarted()) > 0
			testkit.Check(t, restarted == test.restarted, "restarted: %v", restarted)
		})
	}
}

// runtimeOf is a fake container runtime.
type runtimeOf struct {
	cri.UnimplementedRuntimeServiceServer

	hang bool
}

func (r runtimeOf) Status(ctx context.Context, _ *cri.StatusRequest) (*cri.StatusResponse, error) {
	if r.hang {
		<-ctx.Done()
	}
	ready := []*cri.RuntimeCondition{{Type: cri.RuntimeReady, Status: true}}
	return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: ready}}, ctx.Err()
}

func TestHealthCheckerAsksTheRuntime(t *testing.T) {
	for _, hang := range []bool{false, true} {
		socket := filepath.Join(t.TempDir(), "c.sock")
		listener := testkit.Value(net.Listen("unix", socket)).Must(t)
		server := grpc.NewServer()
		cri.RegisterRuntimeServiceServer(server, runtimeOf{hang: hang})
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		timeout := "10s" // which a busy machine may need
		if hang {
			timeout = "200ms"
		}
		began := time.Now()
		code, line := call(t, here(nil, nil), "health-checker", "--component=cri", "--enable-repair=false", "--cri-socket-path=unix://"+socket, "--cri-timeout="+timeout, "--crictl-path=/usr/bin/crictl")
		testkit.Check(t, hang == (code == unhealthy) && hang == strings.Contains(line, "does not answer") && time.Since(began) <= 10*time.Second,
			"hangs %v: %d %q after %s", hang, code, line, time.Since(began))
	}
}

func TestInvalidFlagsAreReportedInOneLine(t *testing.T) {
	for _, test := range []struct {
		program string
		args    []string
		says    string
	}{
		{"health-checker", []string{"--component=kubectl"}, `--component "kubectl" is not known`},
		{"health-checker", []string{"--componnet=cri"}, "did you mean --component?"},
		{"health-checker", []string{"--weather=fine"}, "there is no flag --weather; there are --component"},
		{"health-checker", []string{"--cooldown-time=soon"}, "cooldown-time"},
		{"health-checker", []string{"--cri-timeout=0s"}, "more than zero"},
		{"health-checker", []string{"--log-pattern=x"}, "is not N:regex"},
		{"health-checker", []string{"--log-pattern=0:x"}, "is not N:regex"},
		{"health-checker", []string{"--log-pattern=1:("}, "is no regular expression"},
		{"health-checker", []string{"kubelet"}, `"kubelet" is no flag`},
		{"health-checker", []string{"--component=cri", "--cri-socket-path="}, "--cri-socket-path is empty"},
		{"log-counter", nil, "--pattern is missing"},
		{"log-counter", []string{"--pattern=("}, "--pattern"},
		{"log-counter", []string{"--pattern=a", "--lookback=soon"}, `--lookback "soon" is no duration`},
		{"log-counter", []string{"--pattern=a", "--count=0"}, "--count 0"},
		{"log-counter", []string{"--pattern=a", "--log-path=journal"}, "--log-path"},
	} {
		if code, line := call(t, here(nil, nil), test.program, test.args...); code != unknown || !strings.Contains(line, test.says) || !strings.HasPrefix(line, test.program+": ") {
			t.Errorf("%s %q: %d %q", test.program, test.args, code, line)
		}
	}
	var out strings.Builder
	code := healthChecker(here(nil, nil), []string{"--help"}, &out)
	testkit.Check(t, code == healthy && strings.Contains(out.String(), "-cooldown-time"), "help: %d %q", code, out.String())
}

func TestLogCounterCountsTheJournal(t *testing.T) {
	folder, write, _ := journald(t)
	for i := range 5 {
		write("systemd", "Started kubelet.service - kubelet.")
		write("other", "Started kubelet.service - kubelet.")
		if i == 0 {
			write("systemd", "Stopping kubelet.service - kubelet...")
		}
	}
	base := []string{"--journald-source=systemd", "--log-path=" + folder, "--lookback=20m", `--pattern=Started kubelet\.service.*`}
	count := func(more ...string) (int, string) {
		return call(t, here(nil, nil), "log-counter", slices.Concat(base, more)...)
	}
	testkit.Until(t, "five lines are there", func() bool {
		code, _ := count("--count=5")
		return code == unhealthy
	})
	for _, test := range []struct {
		name string
		more []string
		want int
		says string
	}{
		{"below the count", []string{"--count=6"}, healthy, "5 lines match"},
		{"one is enough", nil, unhealthy, "5 lines match"},
		{"a stop takes one off", []string{"--count=5", `--revert-pattern=Stopping kubelet\.service.*`}, healthy, "4 lines match"},
		{"the pattern ends at the line's end", []string{"--pattern=Started", "--count=1"}, healthy, "0 lines"},
		{"nothing counts until the delay is over", []string{"--delay=2h", "--count=1"}, healthy, "0 lines"},
		{"nothing that old is left", []string{"--lookback=0", "--count=1"}, healthy, "0 lines"},
		{"no lines of the source", []string{"--journald-source=missing", "--count=1"}, healthy, "0 lines"},
		{"there is no such folder", []string{"--log-path=" + folder + "/nowhere"}, unknown, "nowhere"},
	} {
		t.Run(test.name, func(t *testing.T) {
			began := time.Now()
			code, line := count(test.more...)
			testkit.Check(t, code == test.want && strings.Contains(line, test.says), "%d %q", code, line)
			testkit.Between(t, time.Since(began), 0, 10*time.Second, "the time of the check")
		})
	}
}

func TestLogCounterCountsTheKernelsLog(t *testing.T) {
	mark := fmt.Sprintf("autohealer-helpers-%d", time.Now().UnixNano())
	log := testkit.Value(os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)).Must(t)
	defer log.Close()
	for range 3 {
		testkit.Value(log.WriteString(mark + " happened\n")).Must(t)
	}
	n := here(nil, nil)
	n.boot = func() (procfs.Boot, error) { return procfs.ReadBoot("") }
	n.now = func() time.Time { return time.Now().Add(time.Second) } // the kernel's timestamps may be slightly ahead
	args := []string{"--log-path=/dev/kmsg", "--lookback=5m", "--pattern=" + mark + ".*"}
	code, line := call(t, n, "log-counter", append(args, "--count=3")...)
	testkit.Check(t, code == unhealthy && strings.HasPrefix(line, "3 "), "%d %q", code, line)
	expect(t, healthy, "", n, "log-counter", append(args, "--count=4")...)
}

func TestScripts(t *testing.T) {
	systemd := unittest.Start(t)
	systemd.Set("chronyd.service", unittest.Unit{Load: "loaded", Active: "active"})
	code, line := call(t, here(systemd, nil), "check_ntp.sh")
	testkit.Check(t, code == healthy && line == "chronyd.service is running", "%d %q", code, line)
	systemd.Set("chronyd.service", unittest.Unit{Load: "loaded", Active: "failed"})
	expect(t, unhealthy, "", here(systemd, nil), "check_ntp.sh")
	if code, line := call(t, here(nil, nil), "check_ntp.sh"); code == unknown || !strings.Contains(line, "clock") {
		t.Errorf("without systemd: %d %q", code, line)
	}

	n := here(nil, nil)
	n.proc = t.TempDir()
	expect(t, healthy, "", n, "network_problem.sh")
	folder := filepath.Join(n.proc, "sys/net/netfilter")
	testkit.Must(t, os.MkdirAll(folder, 0o700))
	for name, text := range map[string]string{"nf_conntrack_count": "90", "nf_conntrack_max": "100"} {
		testkit.Must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	expect(t, healthy, "", n, "network_problem.sh", "ignored")
	testkit.Must(t, os.WriteFile(filepath.Join(folder, "nf_conntrack_count"), []byte("91"), 0o600))
	expect(t, unhealthy, "", n, "network_problem.sh")
	began := time.Now()
	code, line = call(t, here(nil, nil), "dns_problem.sh")
	testkit.Check(t, code >= healthy && code <= unknown && time.Since(began) <= 3*time.Second, "%d %q after %s", code, line, time.Since(began))
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread, and with it the network without rules, ends with the goroutine.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		testkit.Check(t, err == nil, "making a network, which takes root: %v", err)
		n := here(nil, nil)
		n.proc = "/proc/thread-self"
		code, line := call(t, n, "iptables_mode.sh")
		testkit.Check(t, code == healthy && strings.Contains(line, "no rules"), "iptables_mode.sh: %d %q", code, line)
	}()
	<-done
}

// Lines count by the unit that wrote them, under any identifier. Lines of other units under the
// unit's identifier do not count.
func TestHealthCheckerSearchesTheJournalOfItsUnit(t *testing.T) {
	folder, write, other := journald(t)
	systemd := unittest.Start(t)
	systemd.Set("kubelet.service", unittest.Unit{Load: "loaded", Active: "active", Started: time.Now().Add(-time.Hour)})
	systemd.Set("crowd.service", unittest.Unit{Load: "loaded", Active: "active", Started: time.Now().Add(-time.Hour)})
	systemd.Set("late.service", unittest.Unit{Load: "loaded", Active: "inactive"})
	n := here(systemd, served(t, 200))
	n.journal = folder
	search := func(args ...string) (int, string) {
		return call(t, n, "health-checker", append(args, "--enable-repair=false")...)
	}
	for range 3 {
		write("kubelet", "Connection Refused by containerd")
		write("kubelet-wrapper", "connection refused once more")
		other("kubelet", "connection refused, says another program")
	}
	write("kubelet", "the end")
	testkit.Until(t, "the lines are there", func() bool {
		code, _ := search("--log-pattern=1:the end")
		return code == unhealthy
	})
	for _, test := range []struct {
		name string
		args []string
		want int
		says string
	}{
		{"so many", []string{"--log-pattern=6:connection refused"}, unhealthy, `kubelet has written 6 lines that match "connection refused"`},
		{"not so many", []string{"--log-pattern=7:connection refused"}, healthy, "kubelet is well"},
		{"one pattern of two", []string{"--log-pattern=7:connection refused", "--log-pattern=3:once more"}, unhealthy, "3 lines"},
		{"nothing of that age", []string{"--log-pattern=1:connection refused", "--loopback-time=1ns"}, healthy, "kubelet is well"},
		{"another unit", []string{"--service=crowd", "--log-pattern=1:connection refused"}, healthy, "crowd is well"},
		{"a unit that is not there", []string{"--service=missing", "--log-pattern=1:connection refused"}, unknown, "there is no unit missing.service (not-found)"},
		{"a unit that never was started", []string{"--service=late", "--log-pattern=1:connection refused"}, unknown, "late.service was never started"},
		{"such a unit, and how far to look back", []string{"--service=late", "--loopback-time=1h", "--log-pattern=1:connection refused"}, healthy, "late is well"},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, line := search(test.args...)
			testkit.Check(t, code == test.want && strings.Contains(line, test.says), "%d %q", code, line)
		})
	}
}

// A program that has ended still knows what it has restarted.
func TestHealthCheckerRespectsTheCooldown(t *testing.T) {
	systemd := unittest.Start(t) // with a unit that a restart does not change
	old := time.Now().Add(-time.Hour)
	systemd.Set("kubelet.service", unittest.Unit{Load: "loaded", Active: "failed", Started: old, Changed: old})
	n := here(systemd, served(t, 500))
	n.repairs = filepath.Join(t.TempDir(), "repairs")
	for round := range 4 {
		code, line := call(t, n, "health-checker", "--component=kubelet")
		says := map[bool]string{true: "kubelet.service was restarted", false: "(without success); the next restart is possible after a cool-down of 2m0s"}[round == 0]
		testkit.Check(t, code == unhealthy && strings.Contains(line, says), "%d %q", code, line)
		most := maxOutput(t, "health-checker-kubelet.json")
		testkit.Check(t, len(line) <= most, "of what was done nothing is told, after %d bytes: %q", most, line)
	}
	testkit.Same(t, len(systemd.Restarted()), 1, "restarts of systemd")
}

// maxOutput returns the output limit of a shipped file.
func maxOutput(t *testing.T, name string) int {
	t.Helper()
	text := testkit.Value(shipped.Files.ReadFile(name)).Must(t)
	file, _, err := config.Parse(name, config.CustomPlugin, text)
	testkit.Must(t, err)
	return file.Plugin.MaxOutputLength
}

func TestHealthCheckerPatterns(t *testing.T) {
	o := testkit.Value(parseHealth([]string{"--log-pattern=2:connection refused,3:a,b", "--log-pattern=1:x{1,3}:y"}, io.Discard)).Must(t)
	got := make([]string, 0, len(o.patterns))
	for _, p := range o.patterns {
		got = append(got, fmt.Sprintf("%d %s", p.count, p.text))
	}
	testkit.Same(t, strings.Join(got, "|"), "2 connection refused|3 a,b|1 x{1,3}:y", "the records")
	// Without systemd the start of the search is not known.
	expect(t, unknown, "systemd", here(nil, served(t, 200)), "health-checker", "--log-pattern=1:a", "--enable-repair=false")
}

// For any arguments the program prints at most one line and returns an exit code.
func FuzzFlags(f *testing.F) {
	f.Add("--component=cri\n--cri-timeout=1ns")
	f.Add("--log-pattern=1:a,2:b,\n--cooldown-time=-1h")
	f.Add("--pattern=a\n--count=-1\n--lookback=1h")
	f.Add("-h\n--\n-\n---=")
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, "\n")
		o, err := parseHealth(args, io.Discard)
		testkit.Require(t, err != nil || o.service != "" && o.timeout > 0 && o.criTimeout > 0 && unitsOf[o.component] != "", "%+v was taken", o)
		if o, err := parseCounter(args, io.Discard); err == nil && (o.pattern == nil || o.count < 1 || o.lookback < 0 || o.delay < 0) {
			t.Fatalf("%+v was taken", o)
		} else if err != nil {
			var out strings.Builder
			code := refuse(&out, "log-counter", err)
			testkit.Require(t, strings.Count(out.String(), "\n") <= 1 && (code == unknown || out.Len() == 0), "%d %q", code, out.String())
		}
	})
}
