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
			if got.Verdict != test.want || !strings.Contains(got.Message, test.says) || strings.Contains(got.Message, "\n") {
				t.Errorf("%+v", got)
			}
			if ctx.Err() != nil {
				t.Error("no time was left to say so")
			}
		})
	}
}

func TestAClosedPortIsUnhealthy(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	address := listener.Addr().String()
	listener.Close()
	if got := check.Endpoint("it", "http://"+address)(t.Context()); got.Verdict != periodic.Unhealthy || !strings.Contains(got.Message, "refused") {
		t.Errorf("%+v", got)
	}
}

// An agent that is being stopped reports nothing as unhealthy.
func TestACancelledCheckIsUnknown(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if got := check.Endpoint("it", server.URL)(ctx); got.Verdict != periodic.Unknown || got.Reason != "CheckStopped" {
		t.Errorf("%+v", got)
	}
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
		if k, p := check.KubeletURL(getenv), check.KubeProxyURL(getenv); k != test.kubelet || p != test.proxy {
			t.Errorf("%v: %s, %s", test.env, k, p)
		}
	}
}

// The local port differs each time and must not change the message.
func TestAResetConnectionHasTheSameMessageEachTime(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
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
	if first != second || first.Verdict != periodic.Unhealthy || !strings.Contains(first.Message, "connection reset by peer") {
		t.Errorf("%+v and %+v", first, second)
	}
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
