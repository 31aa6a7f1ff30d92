package realnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// network is the network of a node: a link to the machine, and addresses for its pods. The
// addresses are from the range for benchmarks of network devices (RFC 2544), which no
// network uses.
type network struct {
	link          string       // its end on the machine
	index         int          // of the link, never reused
	gateway, node netip.Prefix // the two ends
	pods          netip.Prefix
}

func networkOf(number byte) network {
	at := func(second, last byte, bits int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, second, number, last}), bits)
	}
	return network{link: fmt.Sprintf("ahnode%d", number), gateway: at(18, 1, 30), node: at(18, 2, 30), pods: at(19, 0, 24)}
}

// connect links the node with this first process. The link and its routes are removed with
// the node. The name of the link separates nodes of several clusters.
func connect(ctx context.Context, t tools, pid int) (network, error) {
	for number := byte(1); number < 255; number++ {
		n := networkOf(number)
		err := command(ctx, t.paths["ip"], "link", "add", n.link, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(pid))
		if err != nil && strings.Contains(err.Error(), "File exists") {
			continue
		}
		inside := []string{fmt.Sprintf("--net=/proc/%d/ns/net", pid), t.paths["ip"]}
		for _, step := range [][]string{
			append([]string{t.paths["nsenter"]}, append(inside, "address", "add", n.node.String(), "dev", "eth0")...),
			append([]string{t.paths["nsenter"]}, append(inside, "link", "set", "eth0", "up")...),
			{t.paths["ip"], "address", "add", n.gateway.String(), "dev", n.link},
			{t.paths["ip"], "link", "set", n.link, "up"},
			{t.paths["ip"], "route", "add", n.pods.String(), "via", n.node.Addr().String(), "dev", n.link},
		} {
			if err == nil {
				err = command(ctx, step[0], step[1:]...)
			}
		}
		if made, found := net.InterfaceByName(n.link); err == nil && found == nil {
			n.index = made.Index
		}
		return n, err
	}
	return network{}, errors.New("this machine already has 254 nodes")
}

// disconnect removes the link. The kernel removes it only with the last socket of the node,
// which may wait for minutes for a response.
func (n network) disconnect(t tools) error {
	link, err := net.InterfaceByName(n.link)
	if err != nil || link.Index != n.index { // it is gone, or another link has the name
		return nil //nolint:nilerr // nothing to do
	}
	err = command(context.Background(), t.paths["ip"], "link", "delete", n.link)
	if _, gone := net.InterfaceByName(n.link); gone != nil {
		return nil //nolint:nilerr // the kernel was faster
	}
	return err
}

// command runs a command and returns its output in the error if it fails.
func command(ctx context.Context, path string, args ...string) error {
	if out, err := exec.CommandContext(ctx, path, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", path, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// relay forwards connections from a node to the API server's service. The API server
// listens on the loopback address of the machine.
type relay struct {
	listener net.Listener
	to       string
	over     context.Context
	end      context.CancelFunc
}

func startRelay(pid int, c *testbed.Cluster) (*relay, error) {
	listener, err := inside(pid, func() (net.Listener, error) { return net.Listen("tcp", testbed.ServiceAddress.String()) })
	if err != nil {
		return nil, err
	}
	r := &relay{listener: listener, to: strings.TrimPrefix(c.AdminConfig().Host, "https://")}
	r.over, r.end = context.WithCancel(context.Background())
	go r.serve()
	return r, nil
}

func (r *relay) serve() {
	for {
		from, err := r.listener.Accept()
		if err != nil {
			return // the listener is closed
		}
		go func() {
			defer from.Close()
			to, err := net.Dial("tcp", r.to)
			if err != nil {
				return // the client gets a closed connection
			}
			defer to.Close()
			// If one direction ends, both end: the protocol needs no half-closed
			// connections.
			ended := make(chan struct{}, 2)
			for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
				go func() { _, _ = io.Copy(way[0], way[1]); ended <- struct{}{} }()
			}
			select {
			case <-ended:
			case <-r.over.Done(): // an open socket would keep the network of its node, and the link
			}
		}()
	}
}

func (r *relay) close() {
	_ = r.listener.Close()
	r.end()
}
