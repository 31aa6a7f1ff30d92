package check

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/periodic"
	"github.com/resourcestack/autohealer/internal/probe/procfs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestJudgeMounts(t *testing.T) {
	for _, test := range []struct {
		name  string
		table []string
		want  periodic.Verdict
		says  string
	}{
		{"a healthy disk", []string{"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard"}, periodic.Healthy, ""},
		{"the root was made read-only", []string{"27 1 254:0 / / rw,relatime - ext4 /dev/vda ro,errors=remount-ro"}, periodic.Unhealthy, "/dev/vda on / (ext4)"},
		{"a path with a blank is told as it is", []string{`27 1 254:0 / /my\040disk rw shared:1 master:2 - ext4 /dev/vda ro`}, periodic.Unhealthy, "on /my disk ("},
		{"a user mounted it read-only, with unusual spaces", []string{"27 1 254:0 / /my\u00a0\u2003disk\v ro,relatime - ext4 /dev/vda ro"}, periodic.Healthy, ""},
		{"what has no source", []string{"1 2 0:28 / /x rw - tmpfs  rw", "27 1 254:0 / / rw - ext4  ro"}, periodic.Unhealthy, " on / (ext4)"},
		{"a user mounted it read-only", []string{"27 1 254:0 / /mnt ro,relatime - ext4 /dev/vda ro"}, periodic.Healthy, ""},
		{"a bind mount is read-only", []string{"27 1 254:0 / / rw - ext4 /dev/vda rw", "28 27 254:0 /etc /mnt ro - ext4 /dev/vda rw"}, periodic.Healthy, ""},
		{"a read-only bind mount does not hide it", []string{"28 27 254:0 /etc /mnt ro - ext4 /dev/vda ro", "27 1 254:0 / / rw - ext4 /dev/vda ro"}, periodic.Unhealthy, "on / ("},
		{"a user remounted it read-only below a bind mount", []string{"27 1 254:1 / /data ro - ext4 /dev/vdb ro", "28 27 254:1 /pod /pods/1 rw - ext4 /dev/vdb ro"}, periodic.Healthy, ""},
		{"images", []string{"1 2 7:1 / /snap/core rw - squashfs /dev/loop1 ro", "2 3 11:0 / /cd rw - iso9660 /dev/sr0 ro", "3 4 0:9 / /x rw - erofs /dev/loop2 ro"}, periodic.Healthy, ""},
		{"no disks", []string{"1 2 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro", "1 2 0:29 / /a rw - tmpfs tmpfs ro", "1 2 0:30 / /b rw - overlay overlay ro", "1 2 0:31 / /c rw - nfs4 h:/x ro"}, periodic.Healthy, ""},
		{"a subvolume of btrfs", []string{"1 2 0:31 /@ / rw - btrfs /dev/sda2 ro,space_cache"}, periodic.Unhealthy, "btrfs"},
		{"a newer kernel says so", []string{"27 1 254:0 / / rw - ext4 /dev/vda rw,emergency_ro"}, periodic.Unhealthy, "ext4"},
		{"each filesystem is told once", []string{"1 2 8:1 / /a rw - ext4 /dev/sda1 ro", "2 2 8:1 / /b rw - ext4 /dev/sda1 ro"}, periodic.Unhealthy, "on /a (ext4)"},
		{"many are told briefly", []string{
			"1 2 8:1 / /a rw - ext4 a ro", "1 2 8:2 / /b rw - ext4 b ro", "1 2 8:3 / /c rw - ext4 c ro", "1 2 8:4 / /d rw - ext4 d ro", "1 2 8:5 / /e rw - ext4 e ro",
		}, periodic.Unhealthy, "and 2 more"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "mountinfo")
			testkit.Must(t, os.WriteFile(path, []byte(strings.Join(test.table, "\n")+"\n"), 0o600))
			got := Readonly(path)(t.Context())
			testkit.Check(t, got.Verdict == test.want && strings.Contains(got.Message, test.says) && strings.Count(got.Message, "/dev/sda1") <= 1, "%+v", got)
		})
	}
}

// What Linux 6.18 reports for a real disk: an ext4 in a file, mounted with errors=remount-ro, and
// bind-mounted elsewhere.
func TestJudgeMountsOfARealDisk(t *testing.T) {
	for _, test := range []struct {
		name      string
		disk, pod string // the parts that differ
		super     string
		want      periodic.Verdict
	}{
		{"mounted and bound", "rw", "rw", "rw", periodic.Healthy},
		{"mount -o remount,ro of the disk", "ro", "rw", "ro", periodic.Healthy},
		{"mount -o remount,ro,bind of the second place", "rw", "ro", "rw", periodic.Healthy},
		{"an error (trigger_fs_error)", "rw", "rw", "rw,errors=remount-ro,emergency_ro", periodic.Unhealthy},
		{"an error, as kernels before 6.15 tell it", "rw", "rw", "ro", periodic.Unhealthy},
	} {
		table := fmt.Sprintf("43 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"+
			"63 43 7:0 / /mnt/disk %s,relatime - ext4 /dev/loop0 %s\n64 43 7:0 / /mnt/pod %s,relatime - ext4 /dev/loop0 %s\n",
			test.disk, test.super, test.pod, test.super)
		mounts := testkit.Value(procfs.ParseMounts([]byte(table))).Must(t)
		if got := judgeMounts(mounts); got.Verdict != test.want || got.Verdict == periodic.Unhealthy && !strings.HasSuffix(got.Message, ": /dev/loop0 on /mnt/disk (ext4)") {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}

func TestReadonlyOnThisMachine(t *testing.T) {
	for _, table := range []string{MountTable, "/proc/self/mountinfo"} {
		testkit.Same(t, Readonly(table)(t.Context()).Verdict, periodic.Healthy, "%s", table)
	}
	got := Readonly("/nowhere")(t.Context())
	testkit.Check(t, got.Verdict == periodic.Unknown && got.Reason != "", "%+v", got)
}

// In a pod, the first process may be the agent, and the table may belong to the pod.
func TestAMountTableOfAPodIsUnknown(t *testing.T) {
	const disk, none = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n", "1 0 0:50 / / ro - overlay overlay rw\n2 1 0:51 / /proc rw - proc proc rw\n"
	for _, test := range []struct {
		name, self, first, table string
		pid                      int
		pods                     bool
	}{
		{"on the node", "mnt:[1]", "mnt:[1]", disk, 77, false},
		{"in a pod with hostPID", "mnt:[2]", "mnt:[1]", disk, 77, false},
		{"in a pod with hostPID, on a node without disks", "mnt:[2]", "mnt:[1]", none, 77, false},
		{"in a pod of its own", "mnt:[2]", "mnt:[2]", disk, 1, true},
		{"in a pod of its own, with a shell before it", "mnt:[2]", "mnt:[2]", none, 77, true},
		{"it is not known whose table it is, and there is a disk in it", "mnt:[2]", "", disk, 77, false},
		{"it is not known whose table it is, and there is no disk in it", "mnt:[2]", "", none, 77, true},
	} {
		proc := fakeNamespaces(t, "mnt", test.self, test.first)
		mounts := testkit.Value(procfs.ParseMounts([]byte(test.table))).Must(t)
		pods := isPods(proc, test.pid, mounts)
		testkit.Check(t, pods == test.pods, "%s: that it is the pod's is %v", test.name, pods)
	}
}

// fakeNamespaces creates a /proc with two processes. An empty namespace is not readable.
func fakeNamespaces(t *testing.T, kind, self, first string) string {
	t.Helper()
	proc := t.TempDir()
	for process, namespace := range map[string]string{"self": self, "1": first} {
		folder := filepath.Join(proc, process, "ns")
		testkit.Must(t, os.MkdirAll(folder, 0o700))
		if namespace != "" {
			testkit.Must(t, os.Symlink(namespace, filepath.Join(folder, kind)))
		}
	}
	return proc
}

func TestJudgeClock(t *testing.T) {
	for _, test := range []struct {
		name  string
		told  unix.Timex
		limit time.Duration
		want  periodic.Verdict
	}{
		{"synchronised", unix.Timex{Status: 0x2001, Maxerror: 25_000}, 2 * time.Second, periodic.Healthy},
		{"a leap second is coming", unix.Timex{Status: 0x2011}, 2 * time.Second, periodic.Healthy},
		{"never corrected", unix.Timex{Status: 0x40, Maxerror: 16_000_000, Esterror: 16_000_000}, 2 * time.Second, periodic.Unhealthy},
		{"never corrected, and without a limit", unix.Timex{Status: 0x40, Maxerror: 16_000_000, Esterror: 16_000_000}, 0, periodic.Unhealthy},
		{"a limit beyond what the kernel tells", unix.Timex{Status: 0x40, Maxerror: 16_000_000}, time.Minute, periodic.Unhealthy},
		{"kept by chrony, which leaves the hardware's clock alone", unix.Timex{Status: 0x2041, Maxerror: 10_000, Esterror: 100}, 2 * time.Second, periodic.Healthy},
		{"kept by phc2sys, which estimates nothing", unix.Timex{Status: 0x2001, Maxerror: 500, Esterror: 16_000_000}, 2 * time.Second, periodic.Healthy},
		{"not corrected for long", unix.Timex{Status: 0x2001, Maxerror: 2_000_001}, 2 * time.Second, periodic.Unhealthy},
		{"at the limit", unix.Timex{Status: 0x2001, Maxerror: 2_000_000}, 2 * time.Second, periodic.Healthy},
		{"without a limit", unix.Timex{Status: 0x2001, Maxerror: 15_000_000}, 0, periodic.Healthy},
		{"its pulse is away", unix.Timex{Status: 0x2002}, 0, periodic.Healthy},
	} {
		testkit.Same(t, judgeClock(test.told, test.limit).Verdict, test.want, "%s", test.name)
	}
	got := Clock(time.Second)(t.Context())
	testkit.Check(t, got.Verdict != periodic.Unknown, "the clock of this machine: %+v", got)
}

func TestConntrack(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		want  periodic.Verdict
	}{
		{"there is no table", nil, periodic.Healthy},
		{"there is room", map[string]string{"nf_conntrack_count": "95\n", "nf_conntrack_max": "100\n"}, periodic.Healthy},
		{"it is nearly full", map[string]string{"nf_conntrack_count": "96\n", "nf_conntrack_max": "100\n"}, periodic.Unhealthy},
		{"it is too full", map[string]string{"nf_conntrack_count": "101\n", "nf_conntrack_max": "100\n"}, periodic.Unhealthy},
		{"it has no end", map[string]string{"nf_conntrack_count": "5\n", "nf_conntrack_max": "0\n"}, periodic.Healthy},
		{"it is huge", map[string]string{"nf_conntrack_count": "18446744073709551615", "nf_conntrack_max": "18446744073709551615"}, periodic.Unhealthy},
		{"it holds no number", map[string]string{"nf_conntrack_count": "many", "nf_conntrack_max": "100"}, periodic.Unknown},
		{"it is empty", map[string]string{"nf_conntrack_count": "", "nf_conntrack_max": "100"}, periodic.Unknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			proc := t.TempDir()
			folder := filepath.Join(proc, "sys/net/netfilter")
			testkit.Must(t, os.MkdirAll(folder, 0o700))
			for name, text := range test.files {
				testkit.Must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
			}
			got := Conntrack(proc, 95)(t.Context())
			testkit.Check(t, got.Verdict == test.want && (got.Verdict != periodic.Unknown || got.Reason != ""), "%+v", got)
		})
	}
	testkit.Same(t, judgeConntrack(100, 100, 100).Verdict, periodic.Unhealthy, "a table without a free entry")
	for _, test := range []struct {
		name, self, first string
		want              periodic.Verdict
	}{
		{"with hostNetwork", "net:[1]", "net:[1]", periodic.Healthy},
		{"with hostPID and a network of its own", "net:[2]", "net:[1]", periodic.Unknown},
		{"it is not known whose network it is", "net:[2]", "", periodic.Healthy},
	} {
		testkit.Same(t, Conntrack(fakeNamespaces(t, "net", test.self, test.first), 95)(t.Context()).Verdict, test.want, "%s", test.name)
	}
	got := Conntrack(Proc, 100)(t.Context())
	testkit.Check(t, got.Verdict != periodic.Unknown, "the table of this machine: %+v", got)
}

func TestDNS(t *testing.T) {
	testkit.Same(t, DNS("localhost")(t.Context()).Verdict, periodic.Healthy, "a name that exists")
	testkit.Same(t, DNS("no such name")(t.Context()).Verdict, periodic.Unhealthy, "a name that does not exist")
}

func TestEveryCheckExists(t *testing.T) {
	node := Node{Getenv: os.Getenv, Repairs: &Repairs{}}
	for _, name := range config.Checks() {
		examine, err := New(config.CheckRule{Check: name}, node)
		testkit.Check(t, err == nil && examine != nil, "%s: %v", name, err)
	}
	_, err := New(config.CheckRule{Check: "nothing"}, node)
	testkit.Check(t, err != nil, "there is a check called nothing")
}

func TestWithoutSource(t *testing.T) {
	for text, want := range map[string]string{
		"read tcp 127.0.0.1:45678->127.0.0.1:10248: read: connection reset by peer": "read tcp 127.0.0.1:10248: read: connection reset by peer",
		"read udp [fd00::1]:999->[fd00::a]:53: i/o timeout":                         "read udp [fd00::a]:53: i/o timeout",
		"lookup a on 10.0.0.10:53: read udp 10.1.2.3:5->10.0.0.10:53: refused":      "lookup a on 10.0.0.10:53: read udp 10.0.0.10:53: refused",
		"read unix @->/run/docker.sock: EOF":                                        "read unix @->/run/docker.sock: EOF",
		"a->b":                                                                      "a->b",
	} {
		testkit.Same(t, withoutSource(text), want, "%q", text)
	}
}

// The files of all versions can be read. These files never change; a new version adds its own.
func TestAttemptsOfAllVersionsAreRead(t *testing.T) {
	at := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	want := attempts{
		"containerd.service": {At: at, Times: 2, By: "runtime", Well: at.Add(5 * time.Minute)},
		"kubelet.service":    {At: at.Add(time.Minute)},
	}
	for _, name := range []string{"tried-v0.json", "tried-v1.json"} {
		text := testkit.Value(os.ReadFile("testdata/" + name)).Must(t)
		got, err := parseAttempts(text)
		diff := cmp.Diff(want, got.Units)
		testkit.Check(t, diff == "" && err == nil, "%s: %v (-want +got):\n%s", name, err, diff)
		if written, err := got.text(); name == "tried-v1.json" && (err != nil || !bytes.Equal(append(written, '\n'), text)) {
			t.Errorf("today's format has changed, which takes a new version: %v\n%s", err, written)
		}
	}
	newer := `{"version":7,"units":{"a":{"at":"2026-11-15T12:00:00Z","cause":"x"}},"new":1}`
	got := testkit.Value(parseAttempts([]byte(newer))).Must(t)
	if text, _ := got.text(); string(text) != `{"version":1,"units":{"a":{"at":"2026-11-15T12:00:00Z","cause":"x"}},"new":1}` {
		t.Errorf("of what a newer version has noted %s is left", text)
	}
	for _, text := range []string{``, `[]`, `{"version":1,"units":[]}`, `{"a":{"at":"soon"}}`} {
		got, err := parseAttempts([]byte(text))
		testkit.Check(t, err != nil, "%s is read as %+v", text, got)
	}
}

// The image of the agent has a folder /run. It contains the node's sockets only if it is mounted.
func TestAFolderOfTheImageIsNotOfTheNode(t *testing.T) {
	base := t.TempDir()
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, ""); err != nil { // on an overlay there can be no other
		t.Fatalf("%v: run this test as root", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
	for _, name := range []string{"lower", "upper", "work", "root", "lower/run", "lower/mounted"} {
		testkit.Must(t, os.Mkdir(filepath.Join(base, name), 0o700))
	}
	root := filepath.Join(base, "root")
	err := unix.Mount("overlay", root, "overlay", 0, "lowerdir="+base+"/lower,upperdir="+base+"/upper,workdir="+base+"/work")
	testkit.Require(t, err == nil, "mounting an overlay: %v: run this test as root, with a kernel that has overlays", err)
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	testkit.Must(t, unix.Mount("tmpfs", root+"/mounted", "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(root+"/mounted", unix.MNT_DETACH) })
	for _, test := range []struct {
		name, folder, root string
		want               bool
	}{
		{"of the image", root + "/run", root, false},
		{"mounted into the container", root + "/mounted", root, true},
		{"of a machine", base + "/lower/run", base, true},
		{"nowhere", root + "/nowhere", root, false},
	} {
		testkit.Same(t, isOfTheNode(test.folder, test.root), test.want, "%s", test.name)
	}
}

// The real programs add rules to the kernel in a separate network namespace.
func TestIPTablesReportsWhichTablesHaveRules(t *testing.T) {
	ofAPod := IPTables(fakeNamespaces(t, "net", "net:[2]", "net:[1]"))(t.Context())
	testkit.Check(t, ofAPod.Verdict == periodic.Unknown && ofAPod.Reason == notFound, "the tables of a pod: %+v", ofAPod)
	for _, test := range []struct {
		name     string
		commands []string
		want     periodic.Verdict
		says     string
	}{
		{"none", nil, periodic.Healthy, "no rules"},
		{"an empty table is none", []string{"iptables-legacy -S", "iptables-nft -S"}, periodic.Healthy, "no rules"},
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
					out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
					testkit.Check(t, err == nil, "%s (Debian package iptables): %v %s", command, err, out)
				}
				err := onlyNetAdmin()
				testkit.Check(t, err == nil, "giving up rights: %v", err)
				done <- IPTables("/proc/thread-self")(t.Context())
			}()
			got := <-done
			testkit.Check(t, got.Verdict == test.want && strings.Contains(got.Message, test.says), "%+v", got)
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
	n, _, err := parseRules(rule)
	testkit.Require(f, n == 1 && err == nil, "%d rules, %v", n, err)
	other := bytes.Replace(rule, []byte("filter"), []byte("kubepr"), 1)
	if n, _, err := parseRules(other); n != 0 || err != nil {
		f.Fatalf("%d rules of iptables in a table of nft's own, %v", n, err)
	}
	f.Add(rule)
	f.Add([]byte{16, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{20, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, text []byte) {
		n, _, _ := parseRules(text)
		testkit.Require(t, n <= len(text)/16, "%d rules in %d bytes", n, len(text))
	})
}
