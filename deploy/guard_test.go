package deploy_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/internal/report"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// apiCall is a request to the API server.
type apiCall func(context.Context, kubernetes.Interface) error

// try is a request with the expected refusal, empty if it is allowed.
type try struct {
	name string
	do   apiCall
	want string
}

// attempts sends the requests one after the other.
func attempts(t *testing.T, client kubernetes.Interface, tries []try) {
	t.Helper()
	refused := 0
	for _, try := range tries {
		t.Run(try.name, func(t *testing.T) {
			err := try.do(t.Context(), client)
			switch {
			case try.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case try.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), try.want)):
				t.Errorf("want %q; the error is: %v", try.want, err)
			}
		})
		if try.want != "" {
			refused++
		}
	}
	testkit.Check(t, refused != 0 && refused != len(tries), "%d of %d requests must be refused: the test proves nothing", refused, len(tries))
}

// The paths of the resources that the guards are about.
const (
	nodePath  = "/api/v1/nodes"
	eventPath = "/api/v1/namespaces/default/events"
)

func leasePath(namespace string) string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
}

// rawly sends a request by its path, with the names and values of parameters.
func rawly(verb, path string, kind types.PatchType, body string, params ...string) apiCall {
	return func(ctx context.Context, client kubernetes.Interface) error {
		request := client.CoreV1().RESTClient().Verb(verb).AbsPath(path)
		if body != "" {
			request = request.SetHeader("Content-Type", string(kind)).Body([]byte(body))
		}
		for i := 0; i < len(params); i += 2 {
			request = request.Param(params[i], params[i+1])
		}
		return request.Do(ctx).Error()
	}
}

// creates posts an object with this body.
func creates(path, body string, params ...string) apiCall {
	return rawly("POST", path, "application/json", body, params...)
}

// merges sends a merge patch.
func merges(path, body string, params ...string) apiCall {
	return rawly("PATCH", path, types.MergePatchType, body, params...)
}

func deletes(path string) apiCall { return rawly("DELETE", path, "", "") }

// named is an object with nothing but a name.
func named(name string) string { return fmt.Sprintf(`{"metadata": {"name": %q}}`, name) }

const (
	mine   = "node-0001"
	theirs = "node-0002"
)

// row returns a condition as the agent writes it.
func row(kind, status string) string {
	return fmt.Sprintf(`{"type": %q, "status": %q, "reason": "Tested", "message": "100%% of it", "lastHeartbeatTime": "2026-11-15T12:00:00Z", "lastTransitionTime": "2026-11-15T12:00:00Z"}`, kind, status)
}

// apply writes like the agent: a server-side apply of all its conditions.
func apply(node string, rows ...string) apiCall {
	return applyBody(node, "autohealer-agent", `"status": {"conditions": [`+strings.Join(rows, ", ")+`]}`)
}

// yield keeps fields of a condition that would vanish when the agent yields it to another
// writer.
func yield(node string, rows ...string) apiCall {
	return applyBody(node, "autohealer-agent-yielded", `"status": {"conditions": [`+strings.Join(rows, ", ")+`]}`)
}

// placeholder is the apply of an agent without conditions, and erase is how it removes the
// placeholder.
const (
	placeholder = `{"type": "AutohealerPlaceholder", "status": "Unknown", "reason": "NothingToReport"}`
	erase       = `{"status": {"conditions": [{"type": "AutohealerPlaceholder", "$patch": "delete"}]}}`
)

// erasure is a patch that deletes whole conditions.
func erasure(kinds ...string) string {
	var rows []string
	for _, kind := range kinds {
		rows = append(rows, fmt.Sprintf(`{"type": %q, "$patch": "delete"}`, kind))
	}
	return `{"status": {"conditions": [` + strings.Join(rows, ", ") + `]}}`
}

func erasing(kinds ...string) apiCall {
	return patch(mine, types.StrategicMergePatchType, erasure(kinds...), "status")
}

// cutting removes a condition from the list by its index.
func cutting(kind string) apiCall {
	return func(ctx context.Context, client kubernetes.Interface) error {
		node, err := client.CoreV1().Nodes().Get(ctx, mine, metav1.GetOptions{})
		if err != nil {
			return err
		}
		at := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return string(c.Type) == kind })
		return patch(mine, types.JSONPatchType, fmt.Sprintf(`[{"op": "remove", "path": "/status/conditions/%d"}]`, at), "status")(ctx, client)
	}
}

// applyBody applies fields to the status of a node with a field manager.
func applyBody(node, manager, fields string) apiCall {
	body := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": %q}, %s}`, node, fields)
	if strings.HasPrefix(fields, `"metadata"`) {
		body = fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", %s}`, fields)
	}
	return rawly("PATCH", nodePath+"/"+node+"/status", types.ApplyYAMLPatchType, body, "fieldManager", manager, "force", "true")
}

// patch changes a node, or a subresource of it, by another type of patch.
func patch(node string, kind types.PatchType, body string, subresources ...string) apiCall {
	return patchAs("autohealer-agent", node, kind, body, subresources...)
}

func patchAs(manager, node string, kind types.PatchType, body string, subresources ...string) apiCall {
	return rawly("PATCH", strings.Join(append([]string{nodePath, node}, subresources...), "/"), kind, body, "fieldManager", manager)
}

func createLease(in, name string) apiCall {
	return creates(leasePath(in), named(name), "fieldManager", agent)
}

func renewLease(in, name string) apiCall {
	return merges(leasePath(in)+"/"+name, `{"spec": {"holderIdentity": "agent-pod", "renewTime": "2026-11-15T12:00:00.000000Z"}}`, "fieldManager", agent)
}

func patchLease(body string) apiCall {
	return merges(leasePath(namespace)+"/autohealer-agent-"+mine, body, "fieldManager", agent)
}

// applyLease renews a Lease like the agent, for the given holder.
func applyLease(manager, holder string) apiCall {
	body := fmt.Sprintf(`{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "autohealer-agent-%s"}, "spec": {"holderIdentity": %q}}`, mine, holder)
	return rawly("PATCH", leasePath(namespace)+"/autohealer-agent-"+mine, types.ApplyYAMLPatchType, body, "fieldManager", manager, "force", "true")
}

// managed returns managedFields in an object, which the API server believes.
func managed(manager, fields string) string {
	return fmt.Sprintf(`{"manager": %q, "operation": "Apply", "apiVersion": "coordination.k8s.io/v1", "fieldsType": "FieldsV1", "fieldsV1": {%s}}`, manager, fields)
}

// createEvent creates an Event of the core group.
func createEvent(name string, about corev1.ObjectReference, changes ...func(*corev1.Event)) apiCall {
	return func(ctx context.Context, client kubernetes.Interface) error {
		now := metav1.Now()
		event := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: name}, InvolvedObject: about, Reason: "TaskHung", Message: "100% of it", Type: "Warning",
			Source: corev1.EventSource{Component: "kernel-monitor", Host: mine}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		}
		for _, change := range changes {
			change(event)
		}
		_, err := client.CoreV1().Events("default").Create(ctx, event, metav1.CreateOptions{})
		return err
	}
}

// newEvent creates an Event of the group events.k8s.io about a node.
func newEvent(controller, node string) apiCall {
	return creates("/apis/events.k8s.io/v1/namespaces/default/events", fmt.Sprintf(`{"metadata": {"generateName": "e-"}, "eventTime": "2026-11-15T12:00:00.000000Z", "reportingController": %q,
		"reportingInstance": "i", "action": "Looked", "reason": "TaskHung", "type": "Normal", "regarding": {"kind": "Node", "name": %q}}`, controller, node))
}

func patchEvent(name, body string) apiCall { return merges(eventPath+"/"+name, body) }

func nodeRef(name string) corev1.ObjectReference {
	return corev1.ObjectReference{Kind: "Node", Name: name, UID: types.UID(name)}
}

// everything is what only an admin may do.
var everything = request{"*", "*.*", ""}

// empowers gives an account all rights of the cluster: every refusal is by the admission
// policies.
func (c cluster) empowers(t *testing.T, namespace, account string, client kubernetes.Interface) {
	t.Helper()
	c.kubectl(t, "create", "clusterrolebinding", "too-much", "--clusterrole=cluster-admin", "--serviceaccount="+namespace+":"+account)
	awaitRights(t, client, true, everything)
}

// isForbidden checks that an admission policy is in force by a request that it refuses.
func isForbidden(t *testing.T, client kubernetes.Interface, do apiCall) func() error {
	t.Helper()
	return func() error {
		if err := do(t.Context(), client); !apierrors.IsForbidden(err) {
			return fmt.Errorf("it is not there yet: %w", err)
		}
		return nil
	}
}

// guardsNodes makes allowed and forbidden requests of an agent. The agent has all rights of
// the cluster meanwhile: every refusal is by the admission policies.
func (c cluster) guardsNodes(t *testing.T) {
	admin := clientFor(t, c.AdminConfig())
	client, unbound := c.agentOn(t, mine), c.agentWithoutNode(t)
	c.empowers(t, agent, agent, client)
	// Objects of other writers.
	for _, prepare := range []apiCall{
		createLease(namespace, "autohealer-controller"), createLease(namespace, "autohealer-agent-"+theirs), createLease("kube-node-lease", mine),
		applyBody(mine, "agreeing-agent", `"status": {"conditions": [{"type": "Agreed", "status": "True", "lastHeartbeatTime": "2026-11-15T11:00:00Z"}]}`),
		applyBody(mine, "older-agent", `"status": {"conditions": [`+row("Abandoned", "True")+`]}`),
		createEvent("theirs", nodeRef(theirs)), applyBody(mine, "old-agent", `"status": {"conditions": [`+row("ReadonlyFilesystem", "True")+`]}`),
	} {
		testkit.Must(t, prepare(t.Context(), admin))
	}
	own := testkit.Value(admin.CoreV1().Nodes().Get(t.Context(), mine, metav1.GetOptions{})).Must(t)
	testkit.Eventually(t, "the guard", isForbidden(t, unbound, createLease(namespace, "x")))

	const (
		metadata   = "an agent may write conditions of its node, and not metadata."
		status     = "an agent may write conditions of its node, and not status."
		itself     = "an agent may write the status of its node, and not the node itself"
		native     = "an agent may not write conditions of Kubernetes itself: "
		notTheirs  = "an agent may remove conditions that it has applied, and those without a status or a heartbeat, and not "
		keeps      = "as field manager autohealer-agent-yielded an agent may keep conditions as they are, and change none"
		byApply    = "an agent writes conditions by server-side apply, as field manager autohealer-agent"
		others     = "the agent on node node-0001 may not write node node-0002"
		nameless   = "the token of this agent names no node: use that of its pod"
		ownLease   = "the agent on node node-0001 may write the Lease autohealer-agent-node-0001, and not "
		ownEvents  = "the agent on node node-0001 may write Events about this node, and not about "
		tooLarge   = "a condition of an agent has at most 317 characters of type, 16 of status, 128 of reason and 1024 of message"
		leaseMeta  = "an agent may give its Lease the label app.kubernetes.io/name=autohealer-agent and its node as owner, and no other metadata"
		leaseSpec  = "the Lease of an agent has a holderIdentity of at most 253 characters"
		leaseKeep  = "an agent writes its Lease as field manager autohealer-agent, and adds no other to its managedFields"
		ownSource  = "an Event of the agent on node node-0001 has this node as source.host"
		eventCount = "an agent may raise the count of an Event and move its lastTimestamp, and change nothing else of it"
		eventSize  = "an Event of an agent has at most 1024 characters of message and 128 of reason"
		eventMeta  = "an Event of an agent has no labels, annotations"
	)
	rows := func(n int) (list []string) {
		for i := range n {
			list = append(list, row(fmt.Sprintf("Row%04d", i), "False"))
		}
		return list
	}
	saying := func(message string) string {
		return strings.Replace(row("KernelDeadlock", "False"), "100% of it", message, 1)
	}
	long := func(n int) string { return strings.Repeat("x", n) }
	event := func(change func(*corev1.Event)) apiCall { return createEvent("e7", nodeRef(mine), change) }
	var versions []string // of one manager, which counts once for each version
	for i := range 4 {
		versions = append(versions, strings.Replace(managed(agent, `"f:spec": {"f:holderIdentity": {}}`), "{", fmt.Sprintf(`{"subresource": "s%d", `, i), 1))
	}
	labels := `"labels": {"node-role.kubernetes.io/control-plane": ""}`
	steps := []try{
		{"applies its conditions", apply(mine, row("KernelDeadlock", "False"), row("XfsShutdown", "False")), ""},
		{"changes a condition", apply(mine, row("KernelDeadlock", "True"), row("XfsShutdown", "False")), ""},
		{"removes a condition", apply(mine, row("KernelDeadlock", "True")), ""},
		{"takes over a condition of an old agent", apply(mine, row("KernelDeadlock", "True"), row("ReadonlyFilesystem", "False")), ""},
		{"keeps the fields of a condition that the other writer has not written yet", yield(mine, row("KernelDeadlock", "True")), ""},
		{"yields it to the other writer", apply(mine, row("ReadonlyFilesystem", "False")), ""},
		{"releases the kept fields", yield(mine, placeholder), ""},
		{"takes it back", apply(mine, row("KernelDeadlock", "True"), row("ReadonlyFilesystem", "False")), ""},
		{"no longer keeps it", yield(mine, placeholder), ""},
		{"applies a condition that another writer then changes", apply(mine, row("KernelDeadlock", "True"), row("Written", "False")), ""},
		{"keeps only its type", func(ctx context.Context, client kubernetes.Interface) error {
			written := strings.ReplaceAll(strings.ReplaceAll(row("Written", "True"), "12:00", "13:00"), "100", "1000")
			written = strings.ReplaceAll(written, "Tested", "Theirs")
			if err := patchAs("old-agent", mine, types.StrategicMergePatchType, `{"status": {"conditions": [`+written+`]}}`, "status")(ctx, admin); err != nil {
				return err
			}
			return yield(mine, `{"type": "Written"}`)(ctx, client)
		}, ""},
		{"yields that condition to the other writer", apply(mine, row("KernelDeadlock", "True")), ""},
		{"deletes the other writer's condition as the yielding field manager", yield(mine, placeholder), notTheirs + "Written"},
		{"replaces its conditions by the placeholder", apply(mine, placeholder), ""},
		{"deletes the placeholder", patch(mine, types.StrategicMergePatchType, erase, "status"), ""},
		{"applies a condition again", apply(mine, row("KernelDeadlock", "False")), ""},
		{"deletes a condition of an old agent", erasing("Abandoned"), notTheirs + "Abandoned"},
		{"takes over the condition of the old agent", apply(mine, row("KernelDeadlock", "False"), row("Abandoned", "False")), ""},
		{"no longer applies it", apply(mine, row("KernelDeadlock", "False")), ""},
		{"deletes its rest, which has no status", erasing("Abandoned"), ""},
		{"takes over a condition with the same value", apply(mine, row("KernelDeadlock", "False"), row("Agreed", "True")), ""},
		{"no longer applies that condition", apply(mine, row("KernelDeadlock", "False")), ""},
		{"deletes its rest, which has no heartbeat", erasing("Agreed"), ""},
		{"deletes its own condition by a patch", erasing("KernelDeadlock"), ""},
		{"applies the deleted condition again", apply(mine, row("KernelDeadlock", "False")), ""},
		{"deletes another writer's condition with a status", erasing("NTPProblem"), notTheirs + "NTPProblem"},
		{"deletes that condition and its own", erasing("KernelDeadlock", "NTPProblem"), notTheirs + "NTPProblem"},
		{"deletes another writer's condition by a JSON patch", cutting("NTPProblem"), notTheirs + "NTPProblem"},
		{"deletes another writer's condition as the yielding field manager", patchAs("autohealer-agent-yielded", mine, types.StrategicMergePatchType, erasure("NTPProblem"), "status"), keeps},
		{"deletes a condition of Kubernetes", erasing("MemoryPressure"), native + "MemoryPressure"},
		{"deletes a condition of another node", patch(theirs, types.StrategicMergePatchType, erasure("KernelDeadlock"), "status"), others},
		{"a change as the yielding field manager", yield(mine, row("KernelDeadlock", "True")), keeps},
		{"another condition as the yielding field manager", yield(mine, row("KernelDeadlock", "False"), row("Other", "False")), keeps},
		{"a condition of Kubernetes as the yielding field manager", yield(mine, row("Ready", "False")), native + "Ready"},
		{"another node as the yielding field manager", yield(theirs, row("KernelDeadlock", "True")), others},
		{"a patch in place of the placeholder's apply", patch(mine, types.StrategicMergePatchType, `{"status": {"conditions": [`+placeholder+`]}}`, "status"), byApply},
		{"a patch as the yielding field manager", patchAs("autohealer-agent-yielded", mine, types.StrategicMergePatchType, `{"status": {"conditions": [`+placeholder+`]}}`, "status"), byApply},

		{"the maximal number of conditions", apply(mine, rows(report.MostConditions)...), ""},
		{"one condition too many", apply(mine, rows(report.MostConditions+1)...), "an agent may write at most 100 conditions"},
		{"a thousand conditions", apply(mine, rows(1000)...), "ValidatingAdmissionPolicy 'autohealer-agent-nodes'"},
		{"a message of maximal length", apply(mine, saying(long(report.LongestMessage))), ""},
		{"a message that is too long", apply(mine, saying(long(report.LongestMessage+1))), tooLarge},
		{"a reason that is too long", apply(mine, strings.Replace(saying(""), "Tested", long(report.LongestReason+1), 1)), tooLarge},
		{"a status that is too long", apply(mine, row("KernelDeadlock", long(17))), tooLarge},
		{"a type that is too long", apply(mine, row(long(report.LongestType+1), "False")), tooLarge},
		{"applies a short condition again", apply(mine, row("KernelDeadlock", "False")), ""},

		{"another node", apply(theirs, row("KernelDeadlock", "True")), others},
		{"another node without a change", apply(theirs), others},
		{"labels by an apply", applyBody(mine, "autohealer-agent", `"metadata": {"name": "node-0001", `+labels+`}`), metadata + "labels"},
		{"labels by a patch", patch(mine, types.MergePatchType, `{"metadata": {`+labels+`}}`, "status"), metadata + "labels"},
		{"deletes all labels", patch(mine, types.MergePatchType, `{"metadata": {"labels": null}}`, "status"), metadata + "labels"},
		{"annotations", applyBody(mine, "autohealer-agent", `"metadata": {"name": "node-0001", "annotations": {"autohealer.resourcestack.com/record": "{}"}}`), metadata + "annotations"},
		{"finalizers", applyBody(mine, "autohealer-agent", `"metadata": {"name": "node-0001", "finalizers": ["example.com/stay"]}`), metadata + "finalizers"},
		{"owners", applyBody(mine, "autohealer-agent", `"metadata": {"name": "node-0001", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]}`), metadata + "ownerReferences"},
		{"empties the managedFields, without effect", patch(mine, types.MergePatchType, `{"metadata": {"managedFields": [{}]}}`, "status"), ""},
		{"capacity", applyBody(mine, "autohealer-agent", `"status": {"capacity": {"cpu": "1000"}}`), status + "capacity"},
		{"a new field", patch(mine, types.MergePatchType, `{"status": {"volumesInUse": ["v1"]}}`, "status"), status + "volumesInUse"},
		{"a deleted field", patch(mine, types.MergePatchType, `{"status": {"images": null}}`, "status"), status + "images"},
		{"another deleted field", patch(mine, types.MergePatchType, `{"status": {"addresses": null}}`, "status"), status + "addresses"},
		{"one image of many", patch(mine, types.JSONPatchType, `[{"op": "replace", "path": "/status/images/3/sizeBytes", "value": 1}]`, "status"), status + "images"},
		{"a patch of its own condition", patch(mine, types.StrategicMergePatchType, `{"status": {"conditions": [`+row("KernelDeadlock", "True")+`]}}`, "status"), byApply},
		{"an apply as another field manager", applyBody(mine, "kubelet", `"status": {"conditions": [`+row("KernelDeadlock", "True")+`]}`), byApply},
		{"deletes the kubelet's condition", patch(mine, types.StrategicMergePatchType, `{"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}`, "status"), native + "Ready"},
		{"deletes all conditions", patch(mine, types.MergePatchType, `{"status": {"conditions": null}}`, "status"), native + "Ready, MemoryPressure, DiskPressure, PIDPressure"},
		{"the node itself", patch(mine, types.MergePatchType, `{"spec": {"unschedulable": true}}`), itself},
		{"another node itself", patch(theirs, types.MergePatchType, `{"spec": {"unschedulable": true}}`), others},
		{"deletes its node", deletes(nodePath + "/" + mine), itself},
		{"a new node", creates(nodePath, named("node-0003")), "the agent on node node-0001 may not write node node-0003"},

		{"makes its Lease", createLease(namespace, "autohealer-agent-"+mine), ""},
		{"renews its Lease", renewLease(namespace, "autohealer-agent-"+mine), ""},
		{"its Lease with the label and the owner", patchLease(`{"metadata": {"labels": {"app.kubernetes.io/name": "autohealer-agent"}, "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-0001", "uid": "` + string(own.UID) + `"}]}}`), ""},
		{"its Lease with an annotation", patchLease(`{"metadata": {"annotations": {"a": "` + long(1000) + `"}}}`), leaseMeta},
		{"its Lease with another label", patchLease(`{"metadata": {"labels": {"a": "b"}}}`), leaseMeta},
		{"its Lease with another owner", patchLease(`{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-0002", "uid": "u"}]}}`), leaseMeta},
		{"its Lease with a finalizer", patchLease(`{"metadata": {"finalizers": ["example.com/stay"]}}`), leaseMeta},
		{"its Lease with a long holder", patchLease(`{"spec": {"holderIdentity": "` + long(254) + `"}}`), leaseSpec},
		{"applies its Lease", applyLease(agent, "agent-pod"), ""},
		{"applies its Lease as another manager", applyLease("m1", "agent-pod"), leaseKeep},
		{"renews its Lease as another manager", merges(leasePath(namespace)+"/autohealer-agent-"+mine, `{"spec": {"holderIdentity": "m2"}}`, "fieldManager", "m2"), leaseKeep},
		{"its Lease with an invented manager", patchLease(`{"metadata": {"managedFields": [` + managed("m3", `"f:spec": {"f:holderIdentity": {}}`) + `]}}`), leaseKeep},
		{"its Lease with its own name on invented fields", patchLease(`{"metadata": {"managedFields": [` + managed(agent, `"f:spec": {"f:`+long(100_000)+`": {}}`) + `]}}`), leaseKeep},
		{"its Lease with its own name many times", patchLease(`{"metadata": {"managedFields": [` + strings.Join(versions, ", ") + `]}}`), leaseKeep},
		{"takes its Lease back from another writer", func(ctx context.Context, client kubernetes.Interface) error {
			if err := applyLease("theirs", "theirs")(ctx, admin); err != nil {
				return err
			}
			return applyLease(agent, "agent-pod")(ctx, client)
		}, ""},
		{"the Lease of another agent", renewLease(namespace, "autohealer-agent-"+theirs), ownLease + "autohealer-agent-node-0002"},
		{"the Lease of the leader", renewLease(namespace, "autohealer-controller"), ownLease + "autohealer-controller"},
		{"the Lease of the kubelet", renewLease("kube-node-lease", mine), ownLease + "node-0001"},
		{"a Lease with another name", createLease(namespace, "other"), ownLease + "other"},
		{"a Lease with a generated name", creates(leasePath(namespace), `{"metadata": {"generateName": "autohealer-agent-"}}`), ownLease + "autohealer-agent-"},
		{"deletes the Lease of another agent", deletes(leasePath(namespace) + "/autohealer-agent-" + theirs), ownLease + "autohealer-agent-node-0002"},

		{"writes an Event about its node", createEvent("mine", nodeRef(mine)), ""},
		{"increases its count", patchEvent("mine", `{"count": 2, "lastTimestamp": "2026-11-15T12:00:00Z"}`), ""},
		{"changes its message", patchEvent("mine", `{"message": "all is well"}`), eventCount},
		{"changes its source", patchEvent("mine", `{"source": {"component": "other-monitor"}}`), eventCount},
		{"writes an Event of maximal length", event(func(e *corev1.Event) { e.Message = long(report.LongestMessage) }), ""},
		{"writes an Event that is too long", event(func(e *corev1.Event) { e.Message = long(report.LongestMessage + 1) }), eventSize},
		{"writes an Event with a reason that is too long", event(func(e *corev1.Event) { e.Reason = long(report.LongestReason + 1) }), eventSize},
		{"writes an Event with an invented type", event(func(e *corev1.Event) { e.Type = long(1000) }), eventSize},
		{"writes an Event as the controller", event(func(e *corev1.Event) { e.Source.Component = account }), ownSource},
		{"writes an Event as reported by the controller", event(func(e *corev1.Event) { e.ReportingController = account }), ownSource},
		{"writes an Event as the kubelet", event(func(e *corev1.Event) { e.Source.Component = "kubelet" }), ownSource},
		{"writes an Event without a source", event(func(e *corev1.Event) { e.Source = corev1.EventSource{} }), ownSource},
		{"writes an Event as another node", event(func(e *corev1.Event) { e.Source.Host = theirs }), ownSource},
		{"writes an Event with a long instance", event(func(e *corev1.Event) { e.ReportingInstance = long(1000) }), ownSource},
		{"writes an Event with an annotation", event(func(e *corev1.Event) { e.Annotations = map[string]string{"a": long(1000)} }), eventMeta},
		{"writes an Event with a label", event(func(e *corev1.Event) { e.Labels = map[string]string{"a": "b"} }), eventMeta},
		{"writes an Event with managedFields", event(func(e *corev1.Event) {
			e.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:` + long(100_000) + `": {}}`)}}
		}), eventMeta},
		{"writes an Event with a related object", event(func(e *corev1.Event) { e.Related = &corev1.ObjectReference{Kind: "Pod", Name: long(1000)} }), eventMeta},
		{"writes an Event with an action", event(func(e *corev1.Event) { e.Action = long(1000) }), eventMeta},
		{"writes an Event with a long field path", event(func(e *corev1.Event) { e.InvolvedObject.FieldPath = long(1000) }), eventMeta},
		{"writes an Event about another node", createEvent("e1", nodeRef(theirs)), ownEvents + "Node node-0002"},
		{"writes an Event about a pod", createEvent("e2", corev1.ObjectReference{Kind: "Pod", Name: mine, Namespace: "default"}), ownEvents + "Pod node-0001"},
		{"writes an Event about another kind of node", createEvent("e3", corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "Node", Name: mine}), ownEvents + "Node node-0001"},
		{"writes an Event about nothing", createEvent("e4", corev1.ObjectReference{}), strings.TrimSpace(ownEvents)},
		{"changes an Event about another node", patchEvent("theirs", `{"count": 2}`), ownEvents + "Node node-0002"},
		{"makes it an Event about its own node", patchEvent("theirs", `{"involvedObject": {"name": "node-0001"}}`), ownEvents + "Node node-0001 or Node node-0002"},
		{"writes an Event of the other group about another node", newEvent("example.com/c", theirs), ownEvents + "Node node-0002"},
	}
	for _, kind := range nativeConditions() {
		steps = append(steps, try{"the condition " + kind, apply(mine, row("KernelDeadlock", "False"), row(kind, "Unknown")), native + kind})
	}
	attempts(t, client, steps)
	for name, do := range map[string]apiCall{
		"conditions": apply(mine, row("KernelDeadlock", "True")),
		"a Lease":    renewLease(namespace, "autohealer-agent-"+mine),
		"an Event":   createEvent("e6", nodeRef(mine)),
	} {
		t.Run(name+" by a token without a node", func(t *testing.T) {
			if err := do(t.Context(), unbound); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), nameless) {
				t.Error(err)
			}
		})
	}

	// Refused writes changed nothing, and the conditions of other writers still belong to them.
	node := testkit.Value(admin.CoreV1().Nodes().Get(t.Context(), mine, metav1.GetOptions{})).Must(t)
	found := map[corev1.NodeConditionType]string{}
	for _, condition := range node.Status.Conditions {
		found[condition.Type] = condition.Reason
	}
	if found["KernelDeadlock"] != "Tested" || found["Written"] != "Theirs" || found["NTPProblem"] != "NoNTPProblem" || found["Ready"] == "Tested" || found["Abandoned"] != "" {
		t.Errorf("the conditions are %v", found)
	}
	managers := map[string]bool{}
	for _, entry := range node.ManagedFields {
		managers[entry.Manager] = true
	}
	testkit.Check(t, managers["testbed"] && managers["old-agent"] && managers["autohealer-agent"], "the managers are %v", managers)

	// A mistake of another writer does not block the agent.
	testkit.Must(t, erasing("Written")(t.Context(), admin))
	testkit.Must(t, patch(mine, types.StrategicMergePatchType, `{"status": {"conditions": [`+row("XfsShutdown", "True")+`]}}`, "status")(t.Context(), admin))

	// Now the agent has only its own rights, and its necessary writes still work.
	c.kubectl(t, "delete", "clusterrolebinding", "too-much")
	awaitRights(t, client, false, everything)
	for _, step := range steps {
		if step.want != "" || strings.HasPrefix(step.name, "makes its Lease") || strings.HasPrefix(step.name, "writes an Event ") || step.name == "increases its count" {
			continue
		}
		if err := step.do(t.Context(), client); err != nil {
			t.Errorf("%s, with no rights but its own: %v", step.name, err)
		}
	}
	if err := createEvent("mine", nodeRef(mine))(t.Context(), client); !apierrors.IsAlreadyExists(err) {
		t.Errorf("an Event written twice: %v", err)
	}
}

// ignoresOtherClients makes requests that an agent must not make as the admin, to which the
// admission policies do not apply.
func (c cluster) ignoresOtherClients(t *testing.T) {
	admin := clientFor(t, c.AdminConfig())
	for name, do := range map[string]apiCall{
		"a label":           patch(mine, types.MergePatchType, `{"metadata": {"labels": {"a": "b"}}}`, "status"),
		"a native row":      apply(theirs, row("Ready", "True")),
		"a Lease":           renewLease(namespace, "autohealer-agent-"+mine),
		"a Lease of theirs": renewLease("kube-node-lease", mine),
		"an Event":          patchEvent("theirs", `{"count": 3}`),
	} {
		if err := do(t.Context(), admin); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// takesOldRights gives an account the usual rights of node-problem-detector: the old
// DaemonSet, with another image.
func (c cluster) takesOldRights(t *testing.T) {
	const old = "node-problem-detector"
	config := testkit.Value(c.ServiceAccountConfig(t.Context(), "kube-system", old)).Must(t)
	c.kubectl(t, "create", "clusterrolebinding", old, "--clusterrole=system:node-problem-detector", "--serviceaccount=kube-system:"+old)
	client := clientFor(t, config)
	testkit.Eventually(t, "conditions", func() error { return apply(theirs, row("KernelDeadlock", "True"))(t.Context(), client) })
	if _, err := client.CoreV1().Nodes().Get(t.Context(), theirs, metav1.GetOptions{}); err != nil {
		t.Errorf("a look at the node: %v", err)
	}
	if err := createEvent("of-old", nodeRef(theirs))(t.Context(), client); err != nil {
		t.Errorf("an Event: %v", err)
	}
	if err := createLease(namespace, "autohealer-agent-"+theirs)(t.Context(), client); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `cannot create resource "leases"`) {
		t.Errorf("a Lease: %v", err)
	}
	// The additions of docs/how-to/migrate-from-node-problem-detector.md.
	page := testkit.Value(os.ReadFile("../docs/how-to/migrate-from-node-problem-detector.md")).Must(t)
	_, change, _ := strings.Cut(string(page), "```yaml\n")
	change, _, found := strings.Cut(change, "```")
	testkit.Require(t, found, "the page shows no patch")
	c.kubectl(t, "create", "-f", file(t, oldDaemons))
	out, err := c.Kubectl(t.Context(), "-n", "kube-system", "patch", "daemonset", old, "--patch-file", file(t, change), "--dry-run=server", "-o", "yaml")
	testkit.Must(t, err)
	for _, want := range []string{"image: registry.example.com/team/autohealer-agent:v0.1.0", "- /node-problem-detector", "path: /dev/kmsg", "path: /var/lib/autohealer-agent", "fieldPath: spec.nodeName"} {
		testkit.Check(t, strings.Contains(out, want), "the changed DaemonSet has no %q:\n%s", want, out)
	}
	bind := []string{"-n", namespace, "create", "rolebinding", old, "--role=" + agent, "--serviceaccount=kube-system:" + old}
	if _, err := c.Kubectl(t.Context(), bind...); err != nil || !strings.Contains(string(page), "kubectl "+strings.Join(bind, " ")) {
		t.Errorf("binding the right to Leases, as the page says: %v", err)
	}
	testkit.Eventually(t, "a Lease", func() error {
		err := createLease(namespace, "autohealer-agent-node-0009")(t.Context(), client)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	c.guardsTheOld(t, string(page), old)
}

// oldDaemons is the minimal DaemonSet of node-problem-detector.
const oldDaemons = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: node-problem-detector, namespace: kube-system}
spec:
  selector: {matchLabels: {app: node-problem-detector}}
  template:
    metadata: {labels: {app: node-problem-detector}}
    spec:
      serviceAccountName: node-problem-detector
      containers:
      - name: node-problem-detector
        image: registry.k8s.io/node-problem-detector/node-problem-detector:v0.8.19
        command: [/node-problem-detector, --logtostderr, "--config.system-log-monitor=/config/kernel-monitor.json"]
        securityContext: {privileged: true}
        volumeMounts: [{name: kmsg, mountPath: /dev/kmsg, readOnly: true}]
      volumes: [{name: kmsg, hostPath: {path: /dev/kmsg}}]
`

// guardsTheOld also binds the old account to its node, as documented.
func (c cluster) guardsTheOld(t *testing.T, page, account string) {
	t.Helper()
	const ours = "'" + agentAccount + "'"
	added := ", 'system:serviceaccount:kube-system:" + account + "'"
	if !strings.Contains(page, `sed "s/`+ours+`/&`+added+`/" deploy/extras/agent-rights.yaml | kubectl apply -f -`) {
		t.Fatal("the page is different")
	}
	guard := testkit.Value(os.ReadFile("extras/agent-rights.yaml")).Must(t)
	c.kubectl(t, "apply", "-f", file(t, strings.ReplaceAll(string(guard), ours, ours+added)))
	config := testkit.Value(c.ServiceAccountConfig(t.Context(), "kube-system", account, testbed.WithNode(theirs))).Must(t)
	client := clientFor(t, config)
	testkit.Eventually(t, "the guard of the old account", isForbidden(t, client, apply(mine, row("KernelDeadlock", "True"))))
	if err := apply(theirs, row("KernelDeadlock", "False"))(t.Context(), client); err != nil {
		t.Errorf("its own node: %v", err)
	}
	// A rollback to the old program works after the admission policies no longer apply to it.
	patch := func() error {
		return patchAs(account, theirs, types.StrategicMergePatchType,
			`{"status":{"conditions":[{"type":"KernelDeadlock","status":"False","reason":"KernelHasNoDeadlock","lastHeartbeatTime":"2026-11-15T12:00:00Z"}]}}`, "status")(t.Context(), client)
	}
	if err := patch(); !apierrors.IsForbidden(err) {
		t.Errorf("guarded, the old program writes: %v", err)
	}
	if !strings.Contains(page, "\nkubectl apply -f deploy/extras/agent-rights.yaml\nkubectl -n kube-system rollout undo daemonset/"+account+"\n") {
		t.Error("the page does not say how to go back")
	}
	c.kubectl(t, "apply", "-f", "extras/agent-rights.yaml")
	testkit.Eventually(t, "the old program to write again", patch)
}
