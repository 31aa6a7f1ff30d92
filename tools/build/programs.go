package main

import "strings"

// set is a group of programs that are built into one folder.
type set struct {
	what   string   // for people
	module string   // folder of the Go module that pins them, from here
	out    string   // folder that they are put in
	inputs []string // files of ours in the module, beside go.mod and go.sum
	given  string   // environment variable that may name a folder with ready ones
	source *source  // that the module is built from a copy of; nil for most
	tags   string   // build tags
	// programs in the order in which they share the most compiled packages.
	programs []program
}

// program is one binary.
type program struct {
	name, pkg string
	ldflags   string
	release   *release // where it is published; nil if it is not, or without a checksum
}

// The versions of Kubernetes and etcd in testbed/go.mod, and the oldest supported version of
// Kubernetes, which is in testbed/oldest/go.mod. The programs of Kubernetes print theirs. All are
// downloaded if DOWNLOAD is 1.
const (
	kubernetesVersion       = "v1.36.3"
	oldestKubernetesVersion = "v1.30.14"
	etcdVersion             = "v3.6.8"
)

// karpenterVersion is that of testbed/karpenter/go.mod.
const karpenterVersion = "v1.15.0"

func kubernetes(version, name string) program {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	const at = "-X k8s.io/component-base/version."
	path := "/release/" + version + "/bin/OS/ARCH/" + name
	return program{name, "k8s.io/kubernetes/cmd/" + name,
		at + "gitVersion=" + version + " " + at + "gitMajor=" + parts[0] + " " + at + "gitMinor=" + parts[1],
		&release{host: "dl.k8s.io", path: path, sums: path + ".sha256"}}
}

var sets = map[string]set{
	"testbed": {
		what:   "a Kubernetes " + kubernetesVersion + " control plane (about 10 minutes on two cores when nothing is cached)",
		module: "../testbed",
		out:    "../bin/testbed",
		inputs: []string{"etcd/main.go"},
		given:  "KUBEBUILDER_ASSETS",
		programs: []program{
			{"etcd", "./etcd", "", &release{
				host: "github.com", path: "/etcd-io/etcd/releases/download/" + etcdVersion + "/etcd-" + etcdVersion + "-OS-ARCH.tar.gz",
				sums: "/etcd-io/etcd/releases/download/" + etcdVersion + "/SHA256SUMS", file: "etcd-" + etcdVersion + "-OS-ARCH/etcd",
			}},
			kubernetes(kubernetesVersion, "kube-apiserver"), // what it leaves in the cache serves nearly all of the others
			kubernetes(kubernetesVersion, "kube-controller-manager"),
			kubernetes(kubernetesVersion, "kube-scheduler"),
			kubernetes(kubernetesVersion, "kubectl"),
			{"kwok", "sigs.k8s.io/kwok/cmd/kwok", "", nil}, // published without a checksum
		},
	},
	// etcd and kwok are those of the set testbed.
	"testbed-oldest": {
		what:   "a Kubernetes " + oldestKubernetesVersion + " control plane (about 15 minutes on two cores when nothing is cached)",
		module: "../testbed/oldest",
		out:    "../bin/testbed-oldest",
		programs: []program{
			kubernetes(oldestKubernetesVersion, "kube-apiserver"),
			kubernetes(oldestKubernetesVersion, "kube-controller-manager"),
			kubernetes(oldestKubernetesVersion, "kube-scheduler"),
			kubernetes(oldestKubernetesVersion, "kubectl"),
		},
	},
	"nodes": {
		what:   "the kubelet of real nodes (about a minute on two cores, after the testbed)",
		module: "../testbed",
		out:    "../bin/testbed",
		inputs: []string{"pause/main.go"},
		given:  "KUBEBUILDER_ASSETS",
		programs: []program{
			kubernetes(kubernetesVersion, "kubelet"),
			{"pause", "./pause", "", nil},
		},
	},
	"karpenter": {
		what:   "Karpenter " + karpenterVersion + " (about 3 minutes on two cores when nothing is cached)",
		module: "../testbed/karpenter",
		out:    "../bin/testbed",
		given:  "KUBEBUILDER_ASSETS",
		source: &source{
			path: "sigs.k8s.io/karpenter", version: karpenterVersion,
			sum:       "h1:5SEptlAvsOZbNg4qg8OSdF1qi6BEZHZLA020nXY7jGw=",
			folder:    "../bin/testbed/.sources/karpenter-" + karpenterVersion,
			goVersion: "1.26.0",
		},
		programs: []program{{"karpenter", "sigs.k8s.io/karpenter/kwok",
			"-X sigs.k8s.io/karpenter/pkg/operator.Version=" + karpenterVersion, nil}},
	},
	"helm": {
		what:     "Helm (about 3 minutes on two cores when nothing is cached)",
		module:   "../testbed/helm",
		out:      "../bin/tools",
		programs: []program{{"helm", "helm.sh/helm/v4/cmd/helm", "", nil}},
	},
	"hugo": {
		what:     "Hugo, which makes the site of the documentation (about 3 minutes on two cores when nothing is cached)",
		module:   "site",
		out:      "../bin/tools",
		programs: []program{{"hugo", "github.com/gohugoio/hugo", "", nil}},
	},
	"registry": {
		what:     "a container registry (about 2 minutes on two cores when nothing is cached)",
		module:   "../testbed/registry",
		out:      "../bin/tools",
		programs: []program{{"registry", "github.com/distribution/distribution/v3/cmd/registry", "", nil}},
	},
	"prometheus": {
		what:   "Prometheus, which tests the alerts and the dashboard (about 4 minutes on two cores when nothing is cached)",
		module: "../testbed/prometheus",
		out:    "../bin/tools",
		tags:   "remove_all_sd", // without the libraries of clouds
		programs: []program{
			{"prometheus", "github.com/prometheus/prometheus/cmd/prometheus", "", nil},
			{"promtool", "github.com/prometheus/prometheus/cmd/promtool", "", nil},
		},
	},
	"linter": {
		what:     "the linter (about 3 minutes on two cores when nothing is cached)",
		module:   ".",
		out:      "../bin/tools",
		programs: []program{{"golangci-lint", "github.com/golangci/golangci-lint/v2/cmd/golangci-lint", "", nil}},
	},
	"generator": {
		what:     "the generator of deepcopy methods and CRDs",
		module:   "generate",
		out:      "../bin/tools",
		programs: []program{{"controller-gen", "sigs.k8s.io/controller-tools/cmd/controller-gen", "", nil}},
	},
}
