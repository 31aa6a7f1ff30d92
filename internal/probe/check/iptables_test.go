package check

import (
	"bytes"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/periodic"
)

// The real programs add rules to the kernel in a separate network namespace.
func TestIPTablesReportsWhichTablesHaveRules(t *testing.T) {
	for _, test := range []struct {
		name     string
		commands []string
		want     periodic.Verdict
		says     string
	}{
		{"none", nil, periodic.Unknown, "no rules"},
		{"an empty table is none", []string{"iptables-legacy -S", "iptables-nft -S"}, periodic.Unknown, "no rules"},
		{"legacy", []string{"iptables-legacy -A INPUT -j ACCEPT", "ip6tables-legacy -A INPUT -j ACCEPT"}, periodic.Healthy, "iptables-legacy: 2 "},
		{"nft", []string{"iptables-nft -A INPUT -j ACCEPT", "ip6tables-nft -A INPUT -j ACCEPT", "iptables-nft -A OUTPUT -j ACCEPT"}, periodic.Healthy, "iptables-nft: 3 "},
		{"both", []string{"iptables-legacy -A INPUT -j ACCEPT", "iptables-nft -A INPUT -j ACCEPT"}, periodic.Unhealthy, "both"},
	} {
		t.Run(test.name, func(t *testing.T) {
			done := make(chan periodic.Result)
			go func() {
				defer close(done)
				// Never unlocked: the thread, and with it the namespace, ends with the goroutine.
				runtime.LockOSThread()
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					t.Errorf("making a network, which takes root: %v", err)
					return
				}
				for _, command := range test.commands {
					words := strings.Fields(command)
					if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
						t.Errorf("%s (Debian package iptables): %v %s", command, err, out)
					}
				}
				if err := onlyNetAdmin(); err != nil {
					t.Errorf("giving up rights: %v", err)
				}
				done <- IPTables("/proc/thread-self")(t.Context())
			}()
			if got := <-done; got.Verdict != test.want || !strings.Contains(got.Message, test.says) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// onlyNetAdmin drops all capabilities of this thread except the one that the check needs.
func onlyNetAdmin() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	rights := [2]unix.CapUserData{{Effective: 1 << unix.CAP_NET_ADMIN, Permitted: 1 << unix.CAP_NET_ADMIN}}
	return unix.Capset(&header, &rights[0])
}

// The parser accepts any input without a panic.
func FuzzParseRules(f *testing.F) {
	rule := []byte{36, 0, 0, 0, 6, 10, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 11, 0, 1, 0, 'f', 'i', 'l', 't', 'e', 'r', 0, 0}
	rule[0] = byte(len(rule))
	if n, _, err := parseRules(rule); n != 1 || err != nil {
		f.Fatalf("%d rules, %v", n, err)
	}
	other := bytes.Replace(rule, []byte("filter"), []byte("kubepr"), 1)
	if n, _, err := parseRules(other); n != 0 || err != nil {
		f.Fatalf("%d rules of iptables in a table of nft's own, %v", n, err)
	}
	f.Add(rule)
	f.Add([]byte{16, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{20, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, text []byte) {
		if n, _, _ := parseRules(text); n > len(text)/16 {
			t.Fatalf("%d rules in %d bytes", n, len(text))
		}
	})
}
