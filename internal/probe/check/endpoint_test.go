package check_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/check"
	"github.com/resourcestack/autohealer/internal/probe/periodic"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestEndpoint(t *testing.T) {
	for _, test := range []struct {
		name string
		path string
		do   http.HandlerFunc
		want periodic.Verdict
		says string
	}{
		{"is well at 200", "/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }, periodic.Healthy, "is well"},
		{"is unhealthy at 500, and says why", "/healthz", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "[-]syncloop failed\nmore", http.StatusInternalServerError)
		}, periodic.Unhealthy, "answers 500 at http://127.0.0.1"},
		{"is unhealthy at a redirect", "/healthz", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, periodic.Unhealthy, "302"},
		{"is unhealthy when it accepts and never answers", "/healthz", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, periodic.Unhealthy, "within"},
		{"is unhealthy when it hangs up", "/healthz", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, periodic.Unhealthy, "does not answer"},
		{"of an older kube-proxy is asked for /healthz", "/livez", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" {
				http.NotFound(w, r)
			}
		}, periodic.Healthy, ""},
		{"is unhealthy when no path is found", "/livez", http.NotFound, periodic.Unhealthy, "404"},
		{"is asked for /healthz only in the place of /livez", "/other", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" {
				http.NotFound(w, r)
			}
		}, periodic.Unhealthy, "404"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(test.do)
			defer server.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			got := check.Endpoint("it", server.URL+test.path)(ctx)
			testkit.Check(t, got.Verdict == test.want && strings.Contains(got.Message, test.says) && !strings.Contains(got.Message, "\n"), "%+v", got)
			testkit.Check(t, ctx.Err() == nil, "no time was left to say so")
		})
	}
}

func TestAClosedPortIsUnhealthy(t *testing.T) {
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0")).Must(t)
	address := listener.Addr().String()
	listener.Close()
	got := check.Endpoint("it", "http://"+address)(t.Context())
	testkit.Check(t, got.Verdict == periodic.Unhealthy && strings.Contains(got.Message, "refused"), "%+v", got)
}

// An agent that is being stopped reports nothing as unhealthy.
func TestACancelledCheckIsUnknown(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	got := check.Endpoint("it", server.URL)(ctx)
	testkit.Check(t, got.Verdict == periodic.Unknown && got.Reason == "CheckStopped", "%+v", got)
}

func TestTheEnvironmentSetsTheAddresses(t *testing.T) {
	for _, test := range []struct {
		env            map[string]string
		kubelet, proxy string
	}{
		{nil, "http://127.0.0.1:10248/healthz", "http://127.0.0.1:10256/livez"},
		{map[string]string{"HOST_ADDRESS": "10.0.0.7", "KUBELET_PORT": "1", "KUBEPROXY_PORT": "2"}, "http://10.0.0.7:1/healthz", "http://10.0.0.7:2/livez"},
		{map[string]string{"HOST_ADDRESS": "fd00::1"}, "http://[fd00::1]:10248/healthz", "http://[fd00::1]:10256/livez"},
	} {
		getenv := func(name string) string { return test.env[name] }
		k, p := check.KubeletURL(getenv), check.KubeProxyURL(getenv)
		testkit.Check(t, k == test.kubelet && p == test.proxy, "%v: %s, %s", test.env, k, p)
	}
}

// The local port differs each time and must not change the message.
func TestAResetConnectionHasTheSameMessageEachTime(t *testing.T) {
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0")).Must(t)
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			buffer := make([]byte, 1<<10)
			_, _ = c.Read(buffer)
			_ = c.(*net.TCPConn).SetLinger(0) // sends a reset
			_ = c.Close()
		}
	}()
	examine := check.Endpoint("the kubelet", "http://"+listener.Addr().String()+"/healthz")
	first, second := examine(t.Context()), examine(t.Context())
	testkit.Check(t, first == second && first.Verdict == periodic.Unhealthy && strings.Contains(first.Message, "connection reset by peer"),
		"%+v and %+v", first, second)
}

func TestADockerThatIsNotMountedIsUnknown(t *testing.T) {
	folder := t.TempDir()
	for _, test := range []struct {
		socket string
		want   periodic.Verdict
	}{
		{"unix:///nowhere/docker.sock", periodic.Unknown},
		{"unix://" + folder + "/docker.sock", periodic.Unhealthy},
	} {
		if got := check.Docker(test.socket)(t.Context()); got.Verdict != test.want || got.Verdict == periodic.Unknown && (got.Reason != "CheckNotPossible" || !strings.Contains(got.Message, "/nowhere is not a directory of the node")) {
			t.Errorf("%s: %+v", test.socket, got)
		}
	}
}
