package kubeapi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/internal/testkit"
)

const person = `
apiVersion: v1
kind: Config
current-context: here
contexts:
- name: there
  context: {cluster: b, user: b}
- name: here
  context: {cluster: a, user: a}
clusters:
- name: a
  cluster: {server: "https://10.0.0.1:6443", certificate-authority: pki/ca.crt, tls-server-name: kubernetes}
- name: b
  cluster: {server: "https://10.0.0.2:6443", certificate-authority-data: Y2E=}
users:
- name: a
  user: {tokenFile: /run/token}
- name: b
  user: {client-certificate-data: Y2VydA==, client-key-data: a2V5, username: u, password: p}
`

func TestParseKubeconfig(t *testing.T) {
	there := strings.Replace(person, "current-context: here", "current-context: there", 1)
	for _, c := range []struct {
		name, text string
		want       Access
		err        string
	}{
		{name: "resolves paths relative to the file", text: person,
			want: Access{Server: "https://10.0.0.1:6443", ServerName: "kubernetes", CAFile: "/etc/k/pki/ca.crt", TokenFile: "/run/token"}},
		{name: "data instead of files", text: there,
			want: Access{Server: "https://10.0.0.2:6443", CA: []byte("ca"), Cert: []byte("cert"), Key: []byte("key"), Username: "u", Password: "p"}},
		{name: "no current context", text: "contexts: []", err: "no current-context"},
		{name: "the current context is missing", text: "current-context: x", err: `"x" is not among its contexts`},
		{name: "no such cluster", text: strings.Replace(person, "{cluster: a,", "{cluster: c,", 1), err: `cluster "c" is missing`},
		{name: "a program for credentials", text: strings.Replace(person, "{tokenFile: /run/token}", "{exec: {command: aws}}", 1), err: "which the agent does not run"},
		{name: "a provider of credentials", text: strings.Replace(person, "{tokenFile: /run/token}", "{auth-provider: {name: oidc}}", 1), err: "which the agent does not run"},
		{name: "a proxy", text: strings.Replace(person, "tls-server-name: kubernetes", "proxy-url: http://p", 1), err: "proxy-url"},
		{name: "data that is no base64", text: strings.Replace(there, "Y2E=", "~~~x", 1), err: "certificate-authority-data is no base64"},
		{name: "no YAML", text: "\tx: [", err: "yaml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseKubeconfig([]byte(c.text), "/etc/k")
			if c.err != "" {
				testkit.Require(t, err != nil && strings.Contains(err.Error(), c.err), "the error is %v, want it to contain %q", err, c.err)
				return
			}
			testkit.Must(t, err)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFindSupportsOverridesOfNodeProblemDetector(t *testing.T) {
	folder := t.TempDir()
	config := filepath.Join(folder, "config")
	testkit.Must(t, os.WriteFile(config, []byte(person), 0o600))
	fromFile := Access{Server: "https://10.0.0.1:6443", ServerName: "kubernetes", CAFile: filepath.Join(folder, "pki/ca.crt"), TokenFile: "/run/token"}
	inPod := map[string]string{"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
	pod := Access{Server: "https://[fd00::1]:443", CAFile: "/sa/ca.crt", TokenFile: "/sa/token"}
	with := func(a Access, change func(*Access)) Access {
		change(&a)
		return a
	}
	for _, c := range []struct {
		name, kubeconfig, override string
		env                        map[string]string
		want                       Access
		err                        string
	}{
		{name: "the service account", env: inPod, want: pod},
		{name: "a kubeconfig", kubeconfig: config, env: inPod, want: fromFile},
		{name: "no pod and no kubeconfig", err: "give --kubeconfig"},
		{name: "another server, as this pod", env: inPod, override: "http://127.0.0.1:8080",
			want: with(pod, func(a *Access) { a.Server = "http://127.0.0.1:8080" })},
		{name: "another server, no variables needed", override: "https://10.1.1.1",
			want: with(pod, func(a *Access) { a.Server = "https://10.1.1.1" })},
		{name: "another server, with nothing", override: "http://10.1.1.1:8080?inClusterConfig=false", want: Access{Server: "http://10.1.1.1:8080"}},
		{name: "another server, with a kubeconfig", override: "https://10.1.1.1?inClusterConfig=false&auth=" + config,
			want: with(fromFile, func(a *Access) { a.Server = "https://10.1.1.1" })},
		{name: "the server of a kubeconfig", override: "?inClusterConfig=false&auth=" + config, want: fromFile},
		{name: "insecure", env: inPod, override: "?insecure",
			want: with(pod, func(a *Access) { a.CAFile, a.Insecure = "", true })},
		{name: "the token of the service account", override: "https://10.1.1.1?inClusterConfig=false&insecure=true&useServiceAccount=true",
			want: Access{Server: "https://10.1.1.1", Insecure: true, TokenFile: "/sa/token"}},
		{name: "no server at all", override: "?inClusterConfig=false", err: "names no server"},
		{name: "neither true nor false", override: "https://10.1.1.1?insecure=maybe", err: "write true or false"},
		{name: "no address", override: "http://%zz", err: "override"},
		{name: "no such kubeconfig", kubeconfig: filepath.Join(folder, "away"), err: "reading the kubeconfig"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := find(c.kubeconfig, c.override, func(name string) string { return c.env[name] }, "/sa")
			if c.err != "" {
				testkit.Require(t, err != nil && strings.Contains(err.Error(), c.err), "the error is %v, want it to contain %q", err, c.err)
				return
			}
			testkit.Must(t, err)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzParseKubeconfig(f *testing.F) {
	f.Add([]byte(person))
	f.Add([]byte("current-context: [a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		access, err := parseKubeconfig(text, "/etc")
		testkit.Check(t, err != nil || access.Server != "", "neither a server nor an error")
	})
}
