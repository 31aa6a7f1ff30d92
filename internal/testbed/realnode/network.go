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

// network is what a node has of its own: a link to the machine that it stands on, and
// addresses for its pods. They are from the range for trials of network devices
// (RFC 2544), which no network in use has.
type network struct {
	link          string       // its end on the machine
	index         int          // of that, which no other ever has
	gateway, node netip.Prefix // the two ends
	pods          netip.Prefix
}

func networkOf(number byte) network {
	at := func(second, last byte, bits int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, second, number, last}), bits)
	}
	return network{link: fmt.Sprintf("ahnode%d", number), gateway: at(18, 1, 30), node: at(18, 2, 30), pods: at(19, 0, 24)}
}

// connect links the node whose first process is given. The link goes with the node, and
// what is routed over it as well. Its name is what keeps nodes of several clusters apart.
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
	return network{}, errors.New("there are 254 nodes on this machine already")
}

// disconnect takes the link away. It would go with the node, but not before the last of
// its sockets, and one that waits for an answer of who is gone may do so for minutes.
func (n network) disconnect(t tools) error {
	link, err := net.InterfaceByName(n.link)
	if err != nil || link.Index != n.index { // it is gone, or another's by now
		return nil //nolint:nilerr // which is as it should be
	}
	err = command(context.Background(), t.paths["ip"], "link", "delete", n.link)
	if _, gone := net.InterfaceByName(n.link); gone != nil {
		return nil //nolint:nilerr // somebody was faster
	}
	return err
}

// command runs one that says nothing unless it fails.
func command(ctx context.Context, path string, args ...string) error {
	if out, err := exec.CommandContext(ctx, path, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", path, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// relay brings connections to the API server's service, which are made in a node, to the
// API server, which listens on the loopback address of the machine.
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
			return // it is closed
		}
		go func() {
			defer from.Close()
			to, err := net.Dial("tcp", r.to)
			if err != nil {
				return // and so the one who called hears that nobody is there
			}
			defer to.Close()
			// Who ends one way ends both: nothing here is said after a goodbye.
			ended := make(chan struct{}, 2)
			for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
				go func() { _, _ = io.Copy(way[0], way[1]); ended <- struct{}{} }()
			}
			select {
			case <-ended:
			case <-r.over.Done(): // a socket keeps the network of its node, and so the link
			}
		}()
	}
}

func (r *relay) close() {
	_ = r.listener.Close()
	r.end()
}
