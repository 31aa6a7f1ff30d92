package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Cluster is a running control plane.
type Cluster struct {
	// The parts, which a test can break. Parts that Config does not ask for are nil.
	Etcd, APIServer, ControllerManager, Scheduler, Kwok *Part

	cfg      Config
	programs map[string]string // paths by name
	folder   *folder
	ports    []*port
	ca       *authority
	server   keyPair // for all servers
	admin    *rest.Config
	client   kubernetes.Interface
	prober   prober
	recorder *recorder // nil if nothing is recorded
	// requestsFolder receives the requests of service accounts; empty for none.
	requestsFolder string

	mu      sync.Mutex
	proxies []*Proxy
	guests  []*Part
	stopped bool
}

// Start starts a cluster and returns when it is ready. ctx bounds only the start. The
// cluster lives until Stop or the end of the process. If the start fails, only the logs
// that the error names remain. If ctx is cancelled, nothing remains.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	c, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		_, _ = c.shutDown()
		if errors.Is(ctx.Err(), context.Canceled) {
			c.folder.remove()
			return nil, err
		}
		return nil, fmt.Errorf("%w\nlogs: %s", err, c.folder.keepLogs())
	}
	return c, nil
}

// Stop ends every process and deletes the cluster's folder. The error reports parts that
// had crashed before. A second call does nothing.
func (c *Cluster) Stop() error {
	crashes, first := c.shutDown()
	if first {
		c.folder.remove()
	}
	return crashes
}

// prepare returns a cluster that is complete and not running.
func prepare(cfg Config) (*Cluster, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the testbed: %w", err)
	}
	c := &Cluster{cfg: cfg, programs: make(map[string]string), requestsFolder: os.Getenv(requestsEnv)}
	for _, name := range cfg.programNames() {
		path, err := cfg.findProgram(name)
		if err != nil {
			return nil, err
		}
		c.programs[name] = path
	}
	var err error
	if c.folder, err = newFolder(cfg.Dir); err != nil {
		return nil, err
	}
	if err := c.assemble(); err != nil {
		_ = c.Stop()
		return nil, err
	}
	return c, nil
}

// assemble reserves the ports, issues the certificates and writes the files that the parts
// read.
func (c *Cluster) assemble() (err error) {
	var ports [4]*port
	for i := range ports {
		if ports[i], err = holdPort(); err != nil {
			return err
		}
		c.ports = append(c.ports, ports[i])
	}
	if c.ca, err = newAuthority(); err != nil {
		return err
	}
	if c.server, err = c.ca.server(); err != nil {
		return err
	}
	c.admin = newAdmin(ports[0].address(), c.ca)
	if c.client, err = kubernetes.NewForConfig(c.admin); err != nil {
		return fmt.Errorf("creating the admin's client: %w", err)
	}
	c.prober = newProber(c.ca, c.admin.BearerToken)
	if len(c.cfg.Record) > 0 {
		c.recorder = newRecorder(c.cfg.Record, c.cfg.RecordIn, c.etcdSocket(), c.auditPath())
	}
	c.Etcd = c.etcdPart()
	c.APIServer = c.apiServerPart(ports[0])
	if c.cfg.ControllerManager {
		c.ControllerManager = c.controllerManagerPart(ports[1])
	}
	if c.cfg.Scheduler {
		c.Scheduler = c.schedulerPart(ports[2])
	}
	if c.cfg.Kwok {
		c.Kwok = c.kwokPart(ports[3])
	}
	return c.writeConf()
}

// start starts the parts in the order of their dependencies. The recorder watches before
// the API server writes anything.
func (c *Cluster) start(ctx context.Context) error {
	if err := c.Etcd.start(ctx); err != nil {
		return err
	}
	if c.recorder != nil {
		c.recorder.start(context.WithoutCancel(ctx))
	}
	if err := c.APIServer.start(ctx); err != nil {
		return err
	}
	if c.Kwok != nil {
		if err := c.allowKwok(ctx); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	parts := []*Part{c.ControllerManager, c.Scheduler, c.Kwok}
	errs := make([]error, len(parts))
	for i, part := range parts {
		if part != nil {
			wg.Go(func() { errs[i] = part.start(ctx) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// shutDown ends all processes. It reports crashes, and whether this call was the first.
// Killing is sufficient, because the data is not used again. Clients end before servers, so
// that none logs errors.
func (c *Cluster) shutDown() (crashes error, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, false
	}
	c.stopped = true
	var errs []error
	for _, guest := range slices.Backward(c.guests) { // later programs may depend on earlier ones
		errs = append(errs, guest.crashed())
		_ = guest.Kill()
	}
	for _, proxy := range c.proxies {
		proxy.close()
	}
	for _, part := range []*Part{c.Kwok, c.Scheduler, c.ControllerManager, c.APIServer, c.Etcd} {
		errs = append(errs, part.crashed())
		_ = part.Kill() // an error means that it does not run
	}
	if c.recorder != nil {
		c.recorder.stop()
	}
	if c.requestsFolder != "" {
		errs = append(errs, keepRequests(c.requestsFolder, c.auditPath()))
	}
	for _, port := range c.ports {
		port.release()
	}
	return errors.Join(errs...), true
}
