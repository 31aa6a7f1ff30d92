package testbed

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Config describes a cluster. The zero value is a cluster of etcd and kube-apiserver.
type Config struct {
	// ControllerManager adds kube-controller-manager. Without it no component creates
	// default service accounts or removes the not-ready taint of a new node, so the two
	// admission plugins that depend on it are disabled.
	ControllerManager bool

	// Scheduler adds kube-scheduler.
	Scheduler bool

	// Kwok adds kwok, which simulates the kubelet of every node with FakeNodeAnnotation.
	// Without it, and with a controller manager, nodes become Unknown after
	// node-monitor-grace-period, like real nodes.
	Kwok bool

	// Record has the resources of which every change is recorded, including custom
	// resources that are not yet defined. Changes are recorded in the stored version,
	// regardless of the version here.
	Record []schema.GroupVersionResource

	// RecordIn limits the recording of a resource to some namespaces. For example, a test
	// needs the Leases of a few nodes, but all Leases are renewed continuously.
	RecordIn map[schema.GroupVersionResource][]string

	// Flags are added to the command lines of the parts. They come last and take
	// precedence; list flags are extended.
	Flags Flags

	// Dir is the parent of the cluster's folder. Empty means os.TempDir().
	Dir string

	// Assets is the folder with the programs. Empty means $KUBEBUILDER_ASSETS and then
	// bin/testbed in the root of the current module.
	Assets string
}

// Flags are extra command-line flags per part, for example
// "--node-monitor-grace-period=4s".
type Flags struct {
	Etcd, APIServer, ControllerManager, Scheduler, Kwok []string
}

// NodesResource, PodsResource and LeasesResource are the resources that tests record most.
var (
	NodesResource  = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	PodsResource   = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	LeasesResource = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
)

// Validate returns all problems of the configuration.
func (c Config) Validate() error {
	var errs []error
	for _, part := range []struct {
		name  string
		flags []string
		runs  bool
	}{
		{"Etcd", c.Flags.Etcd, true},
		{"APIServer", c.Flags.APIServer, true},
		{"ControllerManager", c.Flags.ControllerManager, c.ControllerManager},
		{"Scheduler", c.Flags.Scheduler, c.Scheduler},
		{"Kwok", c.Flags.Kwok, c.Kwok},
	} {
		field := "Flags." + part.name
		if len(part.flags) > 0 && !part.runs {
			errs = append(errs, fmt.Errorf("%s is set, but %s is not asked for", field, part.name))
		}
		for _, flag := range part.flags {
			if !strings.HasPrefix(flag, "--") {
				errs = append(errs, fmt.Errorf("%s: %q is not of the form --name=value", field, flag))
			}
		}
	}
	for i, r := range c.Record {
		field := fmt.Sprintf("Record[%d]", i)
		switch {
		case r.Resource == "" || r.Version == "":
			errs = append(errs, fmt.Errorf("%s: %q needs a version and a resource", field, r))
		case r.Resource != strings.ToLower(r.Resource) || strings.Contains(r.Resource, "/"):
			errs = append(errs, fmt.Errorf("%s: %q is not a resource in lower-case plural, for example nodes", field, r.Resource))
		case r.Group == "events.k8s.io":
			// Events are a resource in two groups; they are stored in the older one.
			errs = append(errs, fmt.Errorf("%s: events are stored as group \"\", version v1; name them so", field))
		case slices.ContainsFunc(c.Record[:i], func(o schema.GroupVersionResource) bool { return o.GroupResource() == r.GroupResource() }):
			errs = append(errs, fmt.Errorf("%s: %s is named twice", field, r.GroupResource()))
		}
	}
	for r, namespaces := range c.RecordIn {
		switch {
		case !slices.Contains(c.Record, r):
			errs = append(errs, fmt.Errorf("RecordIn: %s is not in Record", r.GroupResource()))
		case len(namespaces) == 0 || slices.Contains(namespaces, ""):
			errs = append(errs, fmt.Errorf("RecordIn: %s needs the names of namespaces", r.GroupResource()))
		}
	}
	return errors.Join(errs...)
}
