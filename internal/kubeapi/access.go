package kubeapi

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Access is the address of the API server and the credentials of the agent. Files are read
// again when they change.
type Access struct {
	Server     string // for example https://10.0.0.1:443
	ServerName string // name in the server's certificate, if it differs from the host of Server

	CAFile   string
	CA       []byte // PEM
	Insecure bool   // do not verify the server's certificate

	TokenFile string
	Token     string

	CertFile, KeyFile string
	Cert, Key         []byte // PEM

	Username, Password string
}

// serviceAccount is the directory with the credentials of a pod.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// Find returns the access that the agent's flags request: from a kubeconfig if one is set,
// otherwise from the service account of the pod. override is the value of
// node-problem-detector's --apiserver-override, or empty.
func Find(kubeconfig, override string, getenv func(string) string) (Access, error) {
	return find(kubeconfig, override, getenv, serviceAccount)
}

func find(kubeconfig, override string, getenv func(string) string, account string) (Access, error) {
	var server *url.URL
	query := url.Values{}
	if override != "" {
		var err error
		if server, err = url.Parse(override); err != nil {
			return Access{}, fmt.Errorf("reading the override of the API server's address: %w", err)
		}
		query = server.Query()
	}
	inCluster, err := boolean(query, "inClusterConfig", true)
	if err != nil {
		return Access{}, err
	}
	insecure, err := boolean(query, "insecure", false)
	if err != nil {
		return Access{}, err
	}
	useAccount, err := boolean(query, "useServiceAccount", false)
	if err != nil {
		return Access{}, err
	}
	if kubeconfig == "" && !inCluster {
		kubeconfig = query.Get("auth")
	}

	var access Access
	switch {
	case kubeconfig != "":
		access, err = fromKubeconfig(kubeconfig)
	case inCluster:
		access, err = fromPod(getenv, account, server != nil && server.Host != "")
	}
	if err != nil {
		return Access{}, err
	}
	if server != nil && server.Scheme != "" && server.Host != "" {
		access.Server = (&url.URL{Scheme: server.Scheme, Host: server.Host, Path: server.Path}).String()
	}
	if insecure {
		access.Insecure, access.CAFile, access.CA = true, "", nil
	}
	if useAccount {
		access.TokenFile, access.Token = filepath.Join(account, "token"), ""
	}
	if access.Server == "" {
		return Access{}, fmt.Errorf("the override %q names no server: start it with https://host:port", override)
	}
	return access, nil
}

// boolean reads a setting of the override. A name without a value means true.
func boolean(query url.Values, name string, otherwise bool) (bool, error) {
	if !query.Has(name) {
		return otherwise, nil
	}
	text := query.Get(name)
	if text == "" {
		return true, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("the override of the API server's address says %s=%s: write true or false", name, text)
	}
	return value, nil
}

func fromPod(getenv func(string) string, account string, serverKnown bool) (Access, error) {
	access := Access{CAFile: filepath.Join(account, "ca.crt"), TokenFile: filepath.Join(account, "token")}
	host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
	switch {
	case host != "" && port != "":
		access.Server = "https://" + net.JoinHostPort(host, port)
	case !serverKnown:
		return Access{}, errors.New("not running in a pod, KUBERNETES_SERVICE_HOST and _PORT are not set: outside of a cluster, give --kubeconfig")
	}
	return access, nil
}

// kubeconfig contains the fields of a kubeconfig that the agent uses.
type kubeconfig struct {
	CurrentContext string `yaml:"current-context"`
	Contexts       []struct {
		Name    string `yaml:"name"`
		Context struct {
			Cluster string `yaml:"cluster"`
			User    string `yaml:"user"`
		} `yaml:"context"`
	} `yaml:"contexts"`
	Clusters []struct {
		Name    string `yaml:"name"`
		Cluster struct {
			Server     string `yaml:"server"`
			ServerName string `yaml:"tls-server-name"`
			CAFile     string `yaml:"certificate-authority"`
			CA         string `yaml:"certificate-authority-data"`
			Insecure   bool   `yaml:"insecure-skip-tls-verify"`
			Proxy      string `yaml:"proxy-url"`
		} `yaml:"cluster"`
	} `yaml:"clusters"`
	Users []struct {
		Name string `yaml:"name"`
		User struct {
			TokenFile string `yaml:"tokenFile"`
			Token     string `yaml:"token"`
			CertFile  string `yaml:"client-certificate"`
			Cert      string `yaml:"client-certificate-data"`
			KeyFile   string `yaml:"client-key"`
			Key       string `yaml:"client-key-data"`
			Username  string `yaml:"username"`
			Password  string `yaml:"password"`
			Exec      any    `yaml:"exec"`
			Provider  any    `yaml:"auth-provider"`
		} `yaml:"user"`
	} `yaml:"users"`
}

func fromKubeconfig(path string) (Access, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Access{}, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	access, err := parseKubeconfig(text, filepath.Dir(path))
	if err != nil {
		return Access{}, fmt.Errorf("reading the kubeconfig %s: %w", path, err)
	}
	return access, nil
}

// parseKubeconfig reads the current context. Relative paths in it start at folder.
func parseKubeconfig(text []byte, folder string) (Access, error) {
	var k kubeconfig
	if err := yaml.Unmarshal(text, &k); err != nil {
		return Access{}, err
	}
	if k.CurrentContext == "" {
		return Access{}, errors.New("it has no current-context: run kubectl config use-context")
	}
	var cluster, user string
	found := false
	for _, c := range k.Contexts {
		if c.Name == k.CurrentContext {
			cluster, user, found = c.Context.Cluster, c.Context.User, true
		}
	}
	if !found {
		return Access{}, fmt.Errorf("its current-context %q is not among its contexts", k.CurrentContext)
	}
	at := func(path string) string {
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(folder, path)
	}
	var access Access
	var errs []error
	decode := func(what, text string) []byte {
		data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
		if err != nil {
			errs = append(errs, fmt.Errorf("its %s is no base64: %w", what, err))
		}
		return data
	}
	for _, c := range k.Clusters {
		if c.Name != cluster {
			continue
		}
		if c.Cluster.Proxy != "" {
			return Access{}, fmt.Errorf("its cluster %q has a proxy-url, which the agent does not use: name a server that can be reached", cluster)
		}
		access.Server, access.ServerName, access.Insecure = c.Cluster.Server, c.Cluster.ServerName, c.Cluster.Insecure
		access.CAFile = at(c.Cluster.CAFile)
		if c.Cluster.CA != "" {
			access.CA, access.CAFile = decode("certificate-authority-data", c.Cluster.CA), ""
		}
	}
	if access.Server == "" {
		return Access{}, fmt.Errorf("its cluster %q is missing, or has no server", cluster)
	}
	for _, u := range k.Users {
		if u.Name != user {
			continue
		}
		if u.User.Exec != nil || u.User.Provider != nil {
			return Access{}, fmt.Errorf("its user %q gets credentials from a program, which the agent does not run: give it a token, a tokenFile or a client certificate", user)
		}
		access.TokenFile, access.Token = at(u.User.TokenFile), u.User.Token
		access.Username, access.Password = u.User.Username, u.User.Password
		access.CertFile, access.KeyFile = at(u.User.CertFile), at(u.User.KeyFile)
		if u.User.Cert != "" {
			access.Cert, access.CertFile = decode("client-certificate-data", u.User.Cert), ""
		}
		if u.User.Key != "" {
			access.Key, access.KeyFile = decode("client-key-data", u.User.Key), ""
		}
	}
	return access, errors.Join(errs...)
}
