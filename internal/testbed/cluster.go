package testbed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Cluster is a control plane that runs.
type Cluster struct {
	// The parts, to be broken. Those that Config does not ask for are nil.
	Etcd, APIServer, ControllerManager, Scheduler, Kwok *Part

	cfg      Config
	programs map[string]string // name to path
	folder   *folder
	ports    []*port
	ca       *authority
	server   keyPair // for everything that listens
	admin    *rest.Config
	client   kubernetes.Interface
	prober   prober
	recorder *recorder // nil when nothing is recorded

	mu      sync.Mutex
	proxies []*Proxy
	guests  []*Part
	stopped bool
}

// Start starts a cluster and returns when it is ready. ctx bounds the start and
// not the life of the cluster, which lasts until Stop or the end of the process.
// When the start fails nothing stays behind but the logs that the error names,
// and when it was called off not even those.
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

// Stop ends every process and deletes the cluster's folder. The error tells of
// parts that had ended by themselves before. A second call does nothing.
func (c *Cluster) Stop() error {
	crashes, first := c.shutDown()
	if first {
		c.folder.remove()
	}
	return crashes
}

// prepare returns a cluster of which everything is there and nothing runs.
func prepare(cfg Config) (*Cluster, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the testbed: %w", err)
	}
	c := &Cluster{cfg: cfg, programs: make(map[string]string)}
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

// assemble holds the ports, issues the certificates and writes what the parts read.
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
		return fmt.Errorf("making the admin's client: %w", err)
	}
	c.prober = newProber(c.ca, c.admin.BearerToken)
	if len(c.cfg.Record) > 0 {
		c.recorder = newRecorder(c.cfg.Record, c.cfg.RecordIn, c.etcdSocket(), c.folder.log("audit"))
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

// start starts the parts in the order in which they need each other. The
// recorder watches before the API server has written anything.
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

// shutDown ends everything that runs and reports what had crashed, and whether
// this call was the first. Killing is good enough: nobody will read the data
// again. Clients go before servers, so that none logs complaints at the end.
func (c *Cluster) shutDown() (crashes error, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, false
	}
	c.stopped = true
	var errs []error
	for _, guest := range slices.Backward(c.guests) { // who came later may stand on who came first
		errs = append(errs, guest.crashed())
		_ = guest.Kill()
	}
	for _, proxy := range c.proxies {
		proxy.close()
	}
	for _, part := range []*Part{c.Kwok, c.Scheduler, c.ControllerManager, c.APIServer, c.Etcd} {
		errs = append(errs, part.crashed())
		_ = part.Kill() // one that does not run is as it should be
	}
	if c.recorder != nil {
		c.recorder.stop()
	}
	for _, port := range c.ports {
		port.release()
	}
	return errors.Join(errs...), true
}
