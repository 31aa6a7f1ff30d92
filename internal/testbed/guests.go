package testbed

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ServiceAddress is where pods find the API server: the address and the port of
// the service "kubernetes". Nobody listens there, unless somebody sees to it.
var ServiceAddress = netip.AddrPortFrom(netip.AddrFrom4([4]byte(serviceIP.To4())), 443)

// Program returns the path of one that stands beside those of the control plane.
func (c *Cluster) Program(name string) (string, error) { return c.cfg.findProgram(name) }

// WriteNodeAccess writes into a folder what the kubelet of a node needs to know
// the API server and to be known by it: ca.crt and kubeconfig, with the API server
// at the address of its service.
func (c *Cluster) WriteNodeAccess(folder, node string) error {
	pair, err := c.ca.client("system:node:"+node, "system:nodes")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "ca.crt"), c.ca.pem, 0o644); err != nil {
		return fmt.Errorf("writing the access of node %s: %w", node, err)
	}
	server := &clientcmdapi.Cluster{Server: "https://" + ServiceAddress.String(), CertificateAuthorityData: c.ca.pem}
	return writeKubeconfig(filepath.Join(folder, "kubeconfig"), node, server, &clientcmdapi.AuthInfo{ClientCertificateData: pair.cert, ClientKeyData: pair.key})
}

// NodeConfig returns the configuration of a client that works as the kubelet of a node.
func (c *Cluster) NodeConfig(node string) (*rest.Config, error) {
	pair, err := c.ca.client("system:node:"+node, "system:nodes")
	if err != nil {
		return nil, err
	}
	config := c.AdminConfig()
	config.BearerToken, config.CertData, config.KeyData = "", pair.cert, pair.key
	return config, nil
}
