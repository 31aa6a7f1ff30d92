package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Program is a process that a test runs beside the control plane, to be broken
// like its parts.
type Program struct {
	// Name is what it is called, also by its log. No other has the same.
	Name string
	// Path is the executable.
	Path string
	Args []string
	// Env is added to HOME and PATH, which are all that it gets.
	Env []string
	// Leads says that the program only leads to the one that is meant, as nsenter
	// does: it starts that one and waits for it. Signals are for the one behind it.
	Leads bool
	// Ready says why it is not ready yet. Nil means that it need not be waited for.
	Ready func(context.Context) error
}

// Run starts a program and returns when it is ready. It ends with the cluster,
// before the control plane does.
func (c *Cluster) Run(ctx context.Context, program Program) (*Part, error) {
	part := &Part{
		name: program.Name, path: program.Path, args: program.Args, env: program.Env,
		folder: c.folder.path, log: c.folder.log(program.Name), ready: program.Ready, leads: program.Leads,
	}
	if part.ready == nil {
		part.ready = func(context.Context) error { return nil }
	}
	c.mu.Lock()
	switch {
	case c.stopped:
		c.mu.Unlock()
		return nil, fmt.Errorf("starting %s: the cluster is stopped", program.Name)
	default:
		c.guests = append(c.guests, part)
		c.mu.Unlock()
	}
	if err := part.start(ctx); err != nil {
		_ = part.Kill() // it may hang
		return nil, err
	}
	return part, nil
}

// Folder makes a folder for what a program keeps, and returns its path. It goes with the
// cluster.
func (c *Cluster) Folder(name string) (string, error) {
	path := c.folder.at(name)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", fmt.Errorf("making a folder for %s: %w", name, err)
	}
	return path, nil
}

// Address returns an address on loopback that nobody else gets for as long as
// the cluster lives.
func (c *Cluster) Address() (string, error) {
	p, err := holdPort()
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ports = append(c.ports, p)
	return p.address(), nil
}

// WriteFile puts a file beside the configuration of the control plane, and returns its
// path. It goes with the cluster.
func (c *Cluster) WriteFile(name string, content []byte) (string, error) {
	path, err := c.folder.write(name, content)
	if err != nil {
		return "", fmt.Errorf("writing %s: %w", name, err)
	}
	return path, nil
}

// WriteKubeconfig writes a kubeconfig file for a client that is known by its
// token, and returns its path. A token or an authority that is a file stays one.
func (c *Cluster) WriteKubeconfig(name string, config *rest.Config) (string, error) {
	identity := &clientcmdapi.AuthInfo{Token: config.BearerToken, TokenFile: config.BearerTokenFile}
	if identity.TokenFile != "" {
		identity.Token = "" // which would win
	} else if identity.Token == "" {
		return "", errors.New("writing a kubeconfig: the client has no token")
	}
	server := &clientcmdapi.Cluster{Server: config.Host, CertificateAuthority: config.CAFile, CertificateAuthorityData: config.CAData}
	if server.CertificateAuthority != "" {
		server.CertificateAuthorityData = nil
	}
	path := c.conf(name + ".kubeconfig")
	return path, writeKubeconfig(path, name, server, identity)
}

func writeKubeconfig(path, user string, server *clientcmdapi.Cluster, identity *clientcmdapi.AuthInfo) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["testbed"] = server
	config.AuthInfos[user] = identity
	config.Contexts["testbed"] = &clientcmdapi.Context{Cluster: "testbed", AuthInfo: user}
	config.CurrentContext = "testbed"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	return nil
}

// Ended is closed when the latest run of the process has ended.
func (p *Part) Ended() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run == nil {
		never := make(chan struct{})
		close(never)
		return never
	}
	return p.run.ended
}

// Expect lets the process end by itself without that being called a crash: a
// test that takes its lease away wants to see it go.
func (p *Part) Expect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run != nil {
		p.run.asked = true
	}
}

// Log returns what the process has printed, in all of its runs.
func (p *Part) Log() (string, error) {
	text, err := os.ReadFile(p.log)
	return string(text), err
}
