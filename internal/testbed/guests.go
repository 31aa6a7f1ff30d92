package testbed

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ServiceAddress is where pods find the API server: the address and the port of the service
// "kubernetes". No process listens there by default.
var ServiceAddress = netip.AddrPortFrom(netip.AddrFrom4([4]byte(serviceIP.To4())), 443)

// Program returns the path of a program in the folder of the control plane's programs.
func (c *Cluster) Program(name string) (string, error) { return c.cfg.findProgram(name) }

// WriteNodeAccess writes the kubelet's credentials and the CA into a folder: ca.crt and
// kubeconfig, with the API server at its service address.
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

// NodeConfig returns the configuration of a client with the identity of a node's kubelet.
func (c *Cluster) NodeConfig(node string) (*rest.Config, error) {
	pair, err := c.ca.client("system:node:"+node, "system:nodes")
	if err != nil {
		return nil, err
	}
	config := c.AdminConfig()
	config.BearerToken, config.CertData, config.KeyData = "", pair.cert, pair.key
	return config, nil
}
