package check

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/periodic"
)

// IPTables checks whether rules exist in both the legacy tables and the nft tables of the kernel,
// which do not see each other. It asks the kernel directly, so it needs CAP_NET_ADMIN and no
// iptables program. It does not ask for tables that are not in use, because that would create them.
func IPTables(proc string) periodic.Check {
	return func(context.Context) periodic.Result {
		if isOtherNamespace(proc, "net") {
			return unknown(notFound, "the tables belong to the pod, not to the node; set hostNetwork")
		}
		legacy, err := countLegacy(proc)
		if err != nil {
			return unknown(notAllowed, "counting rules of iptables-legacy: %v", err)
		}
		nft, err := countNFT()
		if err != nil {
			return unknown(notAllowed, "counting rules of iptables-nft: %v", err)
		}
		return judgeIPTables(legacy, nft)
	}
}

func judgeIPTables(legacy, nft int) periodic.Result {
	switch {
	case legacy > 0 && nft > 0:
		return unhealthy("rules from both versions, iptables-legacy: %d, iptables-nft: %d", legacy, nft)
	case legacy > 0:
		return healthy("using iptables-legacy: %d rules", legacy)
	case nft > 0:
		return healthy("using iptables-nft: %d rules", nft)
	}
	return healthy("there are no rules of iptables")
}

// family is an IP address family.
type family struct {
	domain, level int
	names         string // path of the list of tables in use, below /proc
}

var families = []family{
	{unix.AF_INET, unix.IPPROTO_IP, "net/ip_tables_names"},
	{unix.AF_INET6, unix.IPPROTO_IPV6, "net/ip6_tables_names"},
}

// countLegacy counts the rules of the legacy tables.
func countLegacy(proc string) (int, error) {
	total := 0
	for _, f := range families {
		names, err := os.ReadFile(filepath.Join(proc, f.names))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the kernel does not support these tables
		}
		if err != nil {
			return 0, err
		}
		for name := range strings.FieldsSeq(string(names)) {
			n, err := f.count(name)
			if err != nil {
				return 0, fmt.Errorf("table %s: %w", name, err)
			}
			total += n
		}
	}
	return total, nil
}

// tableInfo is struct ipt_getinfo, and ip6t_getinfo as well.
type tableInfo struct {
	name       [32]byte
	validHooks uint32
	hookEntry  [5]uint32
	underflow  [5]uint32
	numEntries uint32
	size       uint32
}

const getInfo = 64 // IPT_SO_GET_INFO and IP6T_SO_GET_INFO

func (f family) count(table string) (int, error) {
	socket, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // a raw socket would need CAP_NET_RAW
	if err != nil {
		return 0, err
	}
	defer unix.Close(socket)
	var info tableInfo
	copy(info.name[:len(info.name)-1], table)
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), uintptr(f.level), getInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	return added(info), nil
}

// added returns the number of entries besides the default ones: a policy for each hook, and the
// end.
func added(info tableInfo) int {
	return max(0, int(info.numEntries)-bits.OnesCount32(info.validHooks)-1)
}

// tablesOfIPTables are the tables of iptables-nft. Other nft tables do not belong to iptables.
var tablesOfIPTables = []string{"filter", "nat", "mangle", "raw", "security"}

// countNFT counts the rules in the tables of iptables-nft.
func countNFT() (int, error) {
	total := 0
	for _, f := range families {
		n, err := dumpRules(uint8(f.domain)) //nolint:gosec // 2 and 10
		if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
			continue // the kernel does not support these tables
		}
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// Constants of the kernel's nf_tables interface.
const (
	subsysNFTables = 10
	msgGetRule     = 7
	msgNewRule     = 6
	attrRuleTable  = 1
	attrType       = 0x3fff // without the flags
)

func dumpRules(domain uint8) (int, error) {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, err
	}
	defer unix.Close(socket)
	// Limit the wait for a kernel that does not answer.
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
		return 0, err
	}
	request := make([]byte, 0, unix.NLMSG_HDRLEN+4)
	request = binary.NativeEndian.AppendUint32(request, unix.NLMSG_HDRLEN+4)
	request = binary.NativeEndian.AppendUint16(request, subsysNFTables<<8|msgGetRule)
	request = binary.NativeEndian.AppendUint16(request, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	request = binary.NativeEndian.AppendUint32(request, 1)
	request = binary.NativeEndian.AppendUint32(request, 0)
	request = append(request, domain, 0, 0, 0)
	if err := unix.Sendto(socket, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	buffer := make([]byte, 64<<10)
	for total := 0; ; {
		n, _, err := unix.Recvfrom(socket, buffer, 0)
		if err != nil {
			return 0, err
		}
		rules, done, err := parseRules(buffer[:n])
		if total += rules; err != nil || done {
			return total, err
		}
	}
}

// parseRules counts the iptables rules in a part of the kernel's answer. done means that it was the
// last part.
func parseRules(text []byte) (rules int, done bool, err error) {
	for len(text) >= unix.NLMSG_HDRLEN {
		length := int(binary.NativeEndian.Uint32(text))
		if length < unix.NLMSG_HDRLEN || length > len(text) {
			return rules, true, errors.New("the kernel's answer is cut")
		}
		body := text[unix.NLMSG_HDRLEN:length]
		switch binary.NativeEndian.Uint16(text[4:]) {
		case unix.NLMSG_DONE:
			return rules, true, nil
		case unix.NLMSG_ERROR:
			if len(body) < 4 {
				return rules, true, errors.New("the kernel's answer is cut")
			}
			if code := int32(binary.NativeEndian.Uint32(body)); code != 0 { //nolint:gosec // it is signed
				return rules, true, unix.Errno(-code)
			}
			return rules, true, nil
		case subsysNFTables<<8 | msgNewRule:
			if table, ok := tableOf(body); ok && slices.Contains(tablesOfIPTables, table) {
				rules++
			}
		}
		text = text[min(len(text), (length+3)&^3):]
	}
	return rules, false, nil
}

// tableOf returns the table name of a rule.
func tableOf(body []byte) (string, bool) {
	if len(body) < 4 {
		return "", false
	}
	for attrs := body[4:]; len(attrs) >= 4; {
		length := int(binary.NativeEndian.Uint16(attrs))
		if length < 4 || length > len(attrs) {
			return "", false
		}
		if binary.NativeEndian.Uint16(attrs[2:])&attrType == attrRuleTable {
			return strings.TrimRight(string(attrs[4:length]), "\x00"), true
		}
		attrs = attrs[min(len(attrs), (length+3)&^3):]
	}
	return "", false
}
