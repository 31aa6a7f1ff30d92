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

// Program is a process that a test runs next to the control plane, and can break like its
// parts.
type Program struct {
	// Name of the program and of its log. It must be unique.
	Name string
	// Path is the executable.
	Path string
	Args []string
	// Env is added to HOME and PATH. The program gets no other variables.
	Env []string
	// Leads says that the program is a wrapper, like nsenter: it starts the actual program
	// and waits for it. Signals go to the actual program.
	Leads bool
	// Ready returns why the program is not ready yet. If it is nil, Run does not wait.
	Ready func(context.Context) error
}

// Run starts a program and returns when it is ready. It ends with the cluster, before the
// control plane.
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

// Folder creates a folder for a program, and returns its path. It is deleted with the
// cluster.
func (c *Cluster) Folder(name string) (string, error) {
	path := c.folder.at(name)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", fmt.Errorf("creating a folder for %s: %w", name, err)
	}
	return path, nil
}

// Address returns a loopback address that is reserved for as long as the cluster lives.
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

// WriteFile writes a file next to the configuration of the control plane, and returns its
// path. It is deleted with the cluster.
func (c *Cluster) WriteFile(name string, content []byte) (string, error) {
	path, err := c.folder.write(name, content)
	if err != nil {
		return "", fmt.Errorf("writing %s: %w", name, err)
	}
	return path, nil
}

// WriteKubeconfig writes a kubeconfig file for a client with a token, and returns its path.
// A token or a CA in a file stays a reference to the file.
func (c *Cluster) WriteKubeconfig(name string, config *rest.Config) (string, error) {
	identity := &clientcmdapi.AuthInfo{Token: config.BearerToken, TokenFile: config.BearerTokenFile}
	if identity.TokenFile != "" {
		identity.Token = "" // it would take precedence
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

// Expect allows the process to exit without being reported as crashed. A test that takes
// its lease away needs this.
func (p *Part) Expect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run != nil {
		p.run.asked = true
	}
}

// Log returns the output of all runs of the process.
func (p *Part) Log() (string, error) {
	text, err := os.ReadFile(p.log)
	return string(text), err
}
