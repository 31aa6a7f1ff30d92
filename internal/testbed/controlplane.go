package testbed

import (
	"fmt"
	"net"
	"strconv"
)

// serviceIP is the first address of the service range, which the service "kubernetes" gets.
var serviceIP = net.IPv4(10, 0, 0, 1)

// tokenIssuer is the issuer and the audience of service account tokens.
const tokenIssuer = "https://kubernetes.default.svc"

// The user names of the components.
const (
	adminUser             = "admin"
	controllerManagerUser = "system:kube-controller-manager"
	schedulerUser         = "system:kube-scheduler"
	kwokUser              = "system:kwok"
	kubeletClientUser     = "kube-apiserver-kubelet-client"
)

// etcdPart listens on a Unix socket: no other process can take its address, its data is
// reachable only from the cluster's folder, and it needs no certificates. etcd refuses to
// advertise a socket. A single member advertises to no peer, so it gets a port that does
// not answer.
func (c *Cluster) etcdPart() *Part {
	const unusedURL = "http://127.0.0.1:1"
	return c.part("etcd", socketProber(c.etcdSocket()).ok("http://etcd/health"), c.cfg.Flags.Etcd,
		"--name=testbed",
		"--data-dir="+c.folder.at("etcd"),
		"--listen-client-urls=unix://"+c.etcdSocket(),
		"--listen-peer-urls=unix://"+c.folder.at("peer.sock"),
		"--advertise-client-urls="+unusedURL,
		"--initial-advertise-peer-urls="+unusedURL,
		"--initial-cluster=testbed="+unusedURL,
		"--unsafe-no-fsync", // the data need not survive the machine
		"--quota-backend-bytes=8589934592",
		"--log-level=warn",
		// A single member elects itself, but only after the election timeout: a second of
		// every start, by default. Shorter intervals cost more CPU than they save.
		"--heartbeat-interval=50",
		"--election-timeout=250",
	)
}

// apiServerPart is ready when its namespaces exist: the API server creates them after
// /readyz succeeds, and a test may need them at once.
func (c *Cluster) apiServerPart(port *port) *Part {
	flags := []string{
		"--etcd-servers=unix://" + c.etcdSocket(),
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port.number),
		"--tls-cert-file=" + c.conf("server.crt"),
		"--tls-private-key-file=" + c.conf("server.key"),
		"--client-ca-file=" + c.conf("ca.crt"),
		"--token-auth-file=" + c.conf("tokens.csv"),
		"--service-account-issuer=" + tokenIssuer,
		"--service-account-signing-key-file=" + c.conf("service-account.key"),
		"--service-account-key-file=" + c.conf("service-account.key"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--allow-privileged=true",
		// Endpoints may not be loopback addresses, but the API server listens only there.
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		// For logs of pods and exec: node names do not resolve on the network.
		"--kubelet-client-certificate=" + c.conf("kubelet-client.crt"),
		"--kubelet-client-key=" + c.conf("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		// The API server finds the pods behind a webhook itself, because there is no
		// kube-proxy.
		"--enable-aggregator-routing=true",
	}
	if !c.cfg.ControllerManager {
		flags = append(flags, "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition")
	}
	if c.isAudited() {
		flags = append(flags,
			"--audit-policy-file="+c.conf("audit-policy.json"),
			"--audit-log-path="+c.auditPath(),
			"--audit-log-mode=blocking", // all answered and running requests are in the log
			"--audit-log-maxsize=1048576",
		)
	}
	host := "https://" + port.address()
	part := c.part("kube-apiserver", c.prober.ok(
		host+"/readyz",
		host+"/api/v1/namespaces/default",
		host+"/api/v1/namespaces/kube-system",
		host+"/api/v1/namespaces/kube-node-lease",
	), c.cfg.Flags.APIServer, flags...)
	if c.recorder != nil {
		part.ended = c.recorder.audit.markEnd
	}
	return part
}

// controllerManagerPart is ready when it has created the first service account: then pods
// can be created.
func (c *Cluster) controllerManagerPart(port *port) *Part {
	return c.part("kube-controller-manager", c.prober.ok(
		"https://"+port.address()+"/healthz",
		c.admin.Host+"/api/v1/namespaces/default/serviceaccounts/default",
	), c.cfg.Flags.ControllerManager, append(c.componentFlags(port, "controller-manager"),
		"--use-service-account-credentials=true", // each controller has its own user, as in most clusters
		"--service-account-private-key-file="+c.conf("service-account.key"),
		"--root-ca-file="+c.conf("ca.crt"),
	)...)
}

func (c *Cluster) schedulerPart(port *port) *Part {
	return c.part("kube-scheduler", c.prober.ok("https://"+port.address()+"/healthz"), // Kubernetes 1.30 has no /readyz
		c.cfg.Flags.Scheduler, c.componentFlags(port, "scheduler")...)
}

// componentFlags are the common flags of the controller manager and the scheduler.
func (c *Cluster) componentFlags(port *port, name string) []string {
	kubeconfig := c.conf(name + ".kubeconfig")
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port.number),
		"--tls-cert-file=" + c.conf("server.crt"),
		"--tls-private-key-file=" + c.conf("server.key"),
		"--leader-elect=false", // there is only one; a restart should not wait for its own old lease
		"--kube-api-qps=1000",  // the default of 20 would limit what a test measures
		"--kube-api-burst=2000",
	}
}

func (c *Cluster) part(name string, ready check, extra []string, flags ...string) *Part {
	return &Part{
		name:   name,
		path:   c.programs[name],
		args:   append(flags, extra...),
		folder: c.folder.path,
		log:    c.folder.log(name),
		ready:  ready,
		env:    []string{"GOGC=400"}, // a tenth less CPU, for 100 MB more
	}
}

// programNames lists the programs that the configuration needs.
func (c Config) programNames() []string {
	names := []string{"etcd", "kube-apiserver", "kubectl"}
	if c.ControllerManager {
		names = append(names, "kube-controller-manager")
	}
	if c.Scheduler {
		names = append(names, "kube-scheduler")
	}
	if c.Kwok {
		names = append(names, "kwok")
	}
	return names
}

func (c *Cluster) etcdSocket() string { return c.folder.at("etcd.sock") }

func (c *Cluster) auditPath() string { return c.folder.log("audit") }

func (c *Cluster) isAudited() bool { return c.recorder != nil || c.requestsFolder != "" }

func (c *Cluster) conf(name string) string { return c.folder.at("conf", name) }

// writeConf writes all files that the parts read.
func (c *Cluster) writeConf() error {
	serviceAccountKey, err := newKey()
	if err != nil {
		return err
	}
	signingKey, err := encodeKey(serviceAccountKey)
	if err != nil {
		return err
	}
	kubeletClient, err := c.ca.client(kubeletClientUser, "system:masters")
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"ca.crt":              c.ca.pem,
		"kubelet-client.crt":  kubeletClient.cert,
		"kubelet-client.key":  kubeletClient.key,
		"server.crt":          c.server.cert,
		"server.key":          c.server.key,
		"service-account.key": signingKey,
		"tokens.csv":          fmt.Appendf(nil, "%s,%s,%s,system:masters\n", c.admin.BearerToken, adminUser, adminUser),
		"stages.yaml":         kwokStages,
	}
	if c.isAudited() {
		if files["audit-policy.json"], err = auditPolicy(c.cfg.Record, c.cfg.RecordIn, c.requestsFolder != ""); err != nil {
			return fmt.Errorf("writing the audit policy: %w", err)
		}
	}
	for name, content := range files {
		if _, err := c.folder.write(name, content); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	return c.writeKubeconfigs()
}
