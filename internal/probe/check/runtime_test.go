package check_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/probe/periodic"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// actor is a fake container runtime.
type actor struct {
	cri.UnimplementedRuntimeServiceServer

	play func(context.Context) (*cri.StatusResponse, error)
}

func (a actor) Status(ctx context.Context, _ *cri.StatusRequest) (*cri.StatusResponse, error) {
	return a.play(ctx)
}

func ready(runtime, network bool) func(context.Context) (*cri.StatusResponse, error) {
	return func(context.Context) (*cri.StatusResponse, error) {
		return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
			{Type: cri.RuntimeReady, Status: runtime, Reason: "ContainerdNotReady", Message: "it is not"},
			{Type: cri.NetworkReady, Status: network, Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized"},
		}}}, nil
	}
}

func listen(tb testing.TB, play func(context.Context) (*cri.StatusResponse, error)) string {
	tb.Helper()
	socket := filepath.Join(tb.TempDir(), "cri.sock")
	listener := testkit.Value(net.Listen("unix", socket)).Must(tb)
	server := grpc.NewServer()
	if play != nil {
		cri.RegisterRuntimeServiceServer(server, actor{play: play})
	}
	go func() { _ = server.Serve(listener) }()
	tb.Cleanup(server.Stop)
	return "unix://" + socket
}

func TestRuntime(t *testing.T) {
	silent := testkit.Value(net.Listen("unix", filepath.Join(t.TempDir(), "silent.sock"))).Must(t)
	defer silent.Close() // the kernel accepts connections, and no one answers
	for _, test := range []struct {
		name, socket string
		want         periodic.Verdict
		says         string
	}{
		{"is well when it says so", listen(t, ready(true, true)), periodic.Healthy, ""},
		{"is well without a network", listen(t, ready(true, false)), periodic.Healthy, ""},
		{"is unhealthy when it is not ready", listen(t, ready(false, true)), periodic.Unhealthy, "ContainerdNotReady: it is not"},
		{"is unhealthy without a ready condition", listen(t, func(context.Context) (*cri.StatusResponse, error) {
			return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{{Type: cri.NetworkReady, Status: true}}}}, nil
		}), periodic.Unhealthy, "does not say whether it is ready"},
		{"is unhealthy without conditions", listen(t, func(context.Context) (*cri.StatusResponse, error) { return &cri.StatusResponse{}, nil }), periodic.Unhealthy, "does not say"},
		{"is unhealthy when it fails", listen(t, func(context.Context) (*cri.StatusResponse, error) {
			return nil, status.Error(codes.Internal, "broken\nby far")
		}), periodic.Unhealthy, "broken"},
		{"is unhealthy when it hangs", listen(t, func(ctx context.Context) (*cri.StatusResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}), periodic.Unhealthy, "within"},
		{"is unhealthy when it takes connections and never answers", silent.Addr().String(), periodic.Unhealthy, "within"},
		{"is unhealthy when it speaks another protocol", listen(t, nil), periodic.Unhealthy, "does not implement CRI v1"},
		{"is unhealthy when its socket is missing", filepath.Join(t.TempDir(), "no.sock"), periodic.Unhealthy, "no such file"},
		{"is unknown when its folder is not mounted", "/nowhere/at/all/no.sock", periodic.Unknown, "/nowhere/at/all"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			got := check.Runtime(test.socket)(ctx)
			testkit.Check(t, got.Verdict == test.want && strings.Contains(got.Message, test.says) && !strings.Contains(got.Message, "\n"), "%+v", got)
			testkit.Check(t, ctx.Err() == nil, "no time was left to say so")
			for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before+2; <-time.After(5 * time.Millisecond) { // of the server
				testkit.Require(t, !time.Now().After(deadline), "%d goroutines are left of %d", runtime.NumGoroutine(), before)
			}
		})
	}
}

// Test with a real containerd.
func TestRuntimeIsContainerd(t *testing.T) {
	_, err := exec.LookPath("containerd")
	testkit.Require(t, err == nil, "there is no containerd: apt-get install -y --no-install-recommends --no-upgrade containerd")
	folder := t.TempDir()
	socket := filepath.Join(folder, "c.sock")
	settings := filepath.Join(folder, "config.toml")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\n[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n[plugins.'io.containerd.grpc.v1.cri']\nstream_server_port = '0'\ndisable_apparmor = true\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = 'native'\n[plugins.'io.containerd.internal.v1.opt']\npath = %q\n",
		filepath.Join(folder, "root"), filepath.Join(folder, "state"), socket, socket+".ttrpc", filepath.Join(folder, "opt"))
	testkit.Must(t, os.WriteFile(settings, []byte(text), 0o600))
	var said bytes.Buffer
	daemon := exec.Command("containerd", "--config", settings)
	daemon.Stderr = &said
	daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // even if the test is killed
	testkit.Must(t, daemon.Start())
	stop := func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	}
	defer stop()
	ask := func() periodic.Result {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return check.Runtime("unix://" + socket)(ctx)
	}
	began := time.Now()
	for ask().Verdict != periodic.Healthy {
		if time.Since(began) > 30*time.Second {
			stop()
			t.Fatalf("containerd is not well: %+v\n%s", ask(), said.String())
		}
		<-time.After(20 * time.Millisecond)
	}
	t.Logf("well %s after its start: %+v", time.Since(began).Round(time.Millisecond), ask())
	stop()
	got := ask()
	testkit.Check(t, got.Verdict == periodic.Unhealthy && strings.Contains(got.Message, "refused"), "after its end: %+v", got)
}

// One operation is one check: a connection, a request and the answer of a runtime in this process,
// whose work is included.
func BenchmarkRuntime(b *testing.B) {
	examine := check.Runtime(listen(b, ready(true, true)))
	b.ReportAllocs()
	for b.Loop() {
		if got := examine(b.Context()); got.Verdict != periodic.Healthy {
			b.Fatalf("%+v", got)
		}
	}
}
