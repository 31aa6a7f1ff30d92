package history

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// Format formats the changes of a recording, one line each. With names it includes only these
// objects: nodes with their remediation objects and Leases, sets, health checks, claims,
// pools, repair policies. It skips changes that leave the printed fields of an object
// unchanged, for example heartbeats.
func Format(recording testbed.Recording, names ...string) string {
	var b strings.Builder
	said := map[types.UID]string{}
	for i, c := range recording {
		if len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return isAbout(c, name) }) {
			continue
		}
		words := describe(c)
		if c.Type == watch.Modified && said[c.UID] == words {
			continue
		}
		said[c.UID] = words
		by := c.Author.User
		if !c.Author.Known() {
			by = c.Author.String()
		}
		fmt.Fprintf(&b, "%3d %s %s %s %s by %s %s\n", i, c.Time.UTC().Format("15:04:05.00"), c.ResourceVersion, c.Type, c.Name, by, words)
	}
	return b.String()
}

// isAbout reports whether a change is of the object with that name, or of an object that
// belongs to the node with that name.
func isAbout(c testbed.Change, name string) bool {
	return c.Name == name || c.Name == leasePrefix+name || c.Name == peerLease || c.Object.GetAnnotations()[nodeNameAnnotation] == name
}

// describe formats the relevant fields of an object after a change.
func describe(c testbed.Change) string {
	switch c.GVR.GroupResource() {
	case testbed.NodesResource.GroupResource():
		return describeNode(c)
	case testbed.LeasesResource.GroupResource():
		l := readLease(c.Object)
		return fmt.Sprintf("Lease of %q renewed at %s for %s", l.holder, l.renewed.UTC().Format(time.TimeOnly), l.lasts)
	case ChecksResource.GroupResource():
		spec, _ := json.Marshal(c.Object.Object["spec"]) // it was JSON
		status := copied(c.Object.Object["status"])
		delete(status, "lastUpdateTime")
		statusText, _ := json.Marshal(status) // it was JSON
		return fmt.Sprintf("NodeHealthCheck %s status=%s", spec, statusText)
	case ClaimsResource.GroupResource():
		return describeClaim(c)
	case PoolsResource.GroupResource():
		repair, _, _ := unstructured.NestedFieldNoCopy(c.Object.Object, "spec", "repair")
		block, _ := json.Marshal(repair) // it was JSON
		return fmt.Sprintf("NodePool repair=%s budgets=%+v annotations=%v", block, readBudgets(c.Object), c.Object.GetAnnotations())
	case PoliciesResource.GroupResource():
		spec, _ := json.Marshal(c.Object.Object["spec"])     // it was JSON
		status, _ := json.Marshal(c.Object.Object["status"]) // it was JSON
		return fmt.Sprintf("RepairPolicy %s status=%s", spec, status)
	case SetsResource.GroupResource(), ConfigMapsResource.GroupResource(), RailsResource.GroupResource():
		spec, _ := json.Marshal(c.Object.Object["spec"]) // it was JSON
		return string(spec)
	}
	spec, _ := json.Marshal(c.Object.Object["spec"]) // it was JSON
	if strings.HasSuffix(c.Object.GetKind(), "Template") {
		return fmt.Sprintf("%s %s", c.Object.GetKind(), spec)
	}
	o := readRemediation(c.Object)
	words := []string{fmt.Sprintf("%s of health check %q for node %s (%s) from %q, made at %s, spec=%s",
		o.kind.Kind, o.check, o.node, o.nodeUID, o.template, o.created.UTC().Format(time.TimeOnly), spec)}
	for _, state := range []struct {
		is   bool
		word string
	}{
		{o.controlPlane, "on the control plane"}, {o.succeeded, "succeeded"}, {o.failed, "failed"}, {o.deletesNode, "replaces the node"},
		{o.timedOut, "timed out"}, {o.deleting, "is being deleted, kept by " + strings.Join(c.Object.GetFinalizers(), ", ")},
	} {
		if state.is {
			words = append(words, state.word)
		}
	}
	if since := c.Object.GetAnnotations()[healthyAnnotation]; since != "" {
		words = append(words, "healthy since "+since)
	}
	return strings.Join(words, ", ")
}

func describeClaim(change testbed.Change) string {
	c := readClaim(change.Object)
	words := []string{fmt.Sprintf("NodeClaim of pool %s for %q", c.pool, c.providerID)}
	if c.initialized {
		words = append(words, "was ready for work")
	}
	if c.disrupted != "" {
		words = append(words, c.disrupted)
	}
	if c.mark.text != "" {
		words = append(words, "marked "+c.mark.text)
	}
	if c.deadline() != "" {
		words = append(words, "deadline "+c.deadline())
	}
	if by := vetoIn(c.object.GetAnnotations()); by != "" {
		words = append(words, "vetoed by "+by)
	}
	return strings.Join(words, ", ")
}

func describeNode(c testbed.Change) string {
	var b strings.Builder
	f := readFacts(c.Object)
	fmt.Fprintf(&b, "(%s)", c.UID)
	for _, name := range slices.Sorted(maps.Keys(f.conditions)) {
		c := f.conditions[name]
		fmt.Fprintf(&b, " %s=%s/%s@%s", name, c.status, c.reason, c.stamp.UTC().Format(time.TimeOnly))
	}
	fmt.Fprintf(&b, " labels=%v taints=%v carried=%v", f.labels, f.taints, f.carried)
	if by := vetoIn(c.Object.GetAnnotations()); by != "" {
		b.WriteString(" vetoed by " + by)
	}
	if _, confirmed := c.Object.GetAnnotations()[confirmedAnnotation]; confirmed {
		b.WriteString(" confirmed healthy")
	}
	return b.String()
}
