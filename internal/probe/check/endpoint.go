package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/probe/periodic"
)

// The kubelet and kube-proxy listen on the address in HOST_ADDRESS and the ports in KUBELET_PORT
// and KUBEPROXY_PORT, as in node-problem-detector.

// KubeletURL is the health endpoint of the kubelet.
func KubeletURL(getenv func(string) string) string {
	return "http://" + host(getenv, "KUBELET_PORT", "10248") + "/healthz"
}

// KubeProxyURL is the health endpoint of kube-proxy.
func KubeProxyURL(getenv func(string) string) string {
	return "http://" + host(getenv, "KUBEPROXY_PORT", "10256") + "/livez"
}

func host(getenv func(string) string, name, port string) string {
	address := "127.0.0.1"
	if given := getenv("HOST_ADDRESS"); given != "" {
		address = given
	}
	if given := getenv(name); given != "" {
		port = given
	}
	return net.JoinHostPort(address, port)
}

// Endpoint checks a component that answers HTTP requests with 200 while it is healthy. If it does
// not know /livez, as older versions of kube-proxy, the check requests /healthz.
func Endpoint(name, address string) periodic.Check { return ask(name, address, &http.Transport{}) }

// DockerSocket is where Docker listens.
const DockerSocket = "unix:///var/run/docker.sock"

// Docker checks Docker on a socket: it must list containers, as for docker ps.
func Docker(socket string) periodic.Check {
	path := strings.TrimPrefix(socket, "unix://")
	examine := ask("Docker", "http://docker/containers/json?limit=1", &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	})
	return func(ctx context.Context) periodic.Result {
		if isNotMounted(path) {
			return notMounted("Docker", path)
		}
		return examine(ctx)
	}
}

func ask(name, address string, through *http.Transport) periodic.Check {
	// Each check uses a new connection, as a new client would, and no proxy.
	through.DisableKeepAlives = true
	client := &http.Client{
		Transport:     through,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context) periodic.Result {
		asking, cancel, limit := answerContext(ctx)
		defer cancel()
		status, said, err := get(asking, client, address)
		if older, ok := olderPath(address); ok && err == nil && status == http.StatusNotFound {
			status, said, err = get(asking, client, older)
		}
		return judgeEndpoint(name, address, limit, status, said, err, late(asking), ctx.Err())
	}
}

// olderPath returns the address for components that do not know /livez.
func olderPath(address string) (string, bool) {
	u, err := url.Parse(address)
	if err != nil || u.Path != "/livez" {
		return "", false
	}
	u.Path = "/healthz"
	return u.String(), true
}

func get(ctx context.Context, client *http.Client, address string) (status int, said string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err != nil {
		return 0, "", fmt.Errorf("reading the answer: %w", err)
	}
	return response.StatusCode, string(body), nil
}

func judgeEndpoint(name, address string, limit time.Duration, status int, said string, err error, late bool, ended error) periodic.Result {
	switch {
	case err == nil && status == http.StatusOK:
		return healthy("%s is well", name)
	case err == nil:
		return unhealthy("%s answers %d at %s: %s", name, status, address, firstLine(said))
	case late:
		return unhealthy("%s does not answer at %s within %s", name, address, formatLimit(limit))
	case ended != nil:
		return unknown(stopped, "the check was stopped before %s answered: %v", name, ended)
	case errors.Is(err, fs.ErrPermission):
		return unknown(notAllowed, "asking %s: %v", name, withoutURL(err))
	}
	return unhealthy("%s does not answer at %s: %s", name, address, withoutSource(withoutURL(err).Error()))
}

// withoutURL removes the address from an error, because the message already contains it.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}
