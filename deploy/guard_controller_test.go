package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/report"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestControllerGuard tests the admission policies of the controller's manifests with the
// tokens and certificates of the clients that they bind.
func TestControllerGuard(t *testing.T) {
	t.Parallel()
	c := cluster{testbed.New(t, testbed.Config{})}
	c.kubectl(t, "apply", "-f", "chart/crds")
	testkit.Eventually(t, "a policy of a user", func() error { // before the webhook, which does not run, would have to judge it
		return creates(policyPath, repairPolicy("users", ""))(t.Context(), clientFor(t, c.AdminConfig()))
	})
	c.kubectl(t, "apply", "-f", "install.yaml")
	testkit.Value(c.CreateNodes(t.Context(), testbed.RealNodes(2))).Must(t)
	t.Run("keeps kubelets from writing annotations that the controller trusts", c.guardsRecords)
	client := c.mightyController(t)
	t.Run("limits the controller to its own writes", func(t *testing.T) { c.guardsController(t, client) })
	t.Run("limits the controller to its own writes to Karpenter's objects", func(t *testing.T) { c.guardsClaims(t, client) })
}

const (
	policyPath        = "/apis/autohealer.resourcestack.com/v1alpha1/repairpolicies"
	railsPath         = "/apis/autohealer.resourcestack.com/v1alpha1/guardrails"
	mirrorLabel       = `"autohealer.resourcestack.com/mirror": "NodePool"`
	ownMirrors        = "of policies without the label autohealer.resourcestack.com/mirror the controller may write the status, and nothing else of "
	onlyTheController = "only the controller writes repairpolicies with the label autohealer.resourcestack.com/mirror"
)

// repairPolicy returns a RepairPolicy with labels.
func guardrailsText(labels string) string {
	return fmt.Sprintf(`{"apiVersion": "autohealer.resourcestack.com/v1alpha1", "kind": "Guardrails", "metadata": {"name": "cluster", "labels": {%s}}}`, labels)
}

func repairPolicy(name, labels string) string {
	return fmt.Sprintf(`{"apiVersion": "autohealer.resourcestack.com/v1alpha1", "kind": "RepairPolicy", "metadata": {"name": %q, "labels": {%s}}, "spec": {"nodePool": "a", "repair": {}}}`, name, labels)
}

// guardsRecords writes as the kubelet of a node. NodeRestriction allows it to write the
// annotations of its node.
func (c cluster) guardsRecords(t *testing.T) {
	admin := clientFor(t, c.AdminConfig())
	config, err := c.NodeConfig(mine)
	testkit.Must(t, err)
	kubelet := clientFor(t, config)
	annotate := func(key, value string, subresources ...string) apiCall {
		return patch(mine, types.MergePatchType, fmt.Sprintf(`{"metadata": {"annotations": {%q: %s}}}`, key, value), subresources...)
	}
	const record, veto = "autohealer.resourcestack.com/record", "autohealer.resourcestack.com/do-not-repair"
	for _, key := range []string{record, veto} {
		testkit.Must(t, annotate(key, `"{}"`)(t.Context(), admin))
	}
	const refusal = "a kubelet may not write annotations on its node that Autohealer acts on: "
	tries := 0
	testkit.Eventually(t, "the guard", func() error {
		tries++ // an unchanged value is not refused
		if err := annotate(veto, fmt.Sprintf(`"%d"`, tries))(t.Context(), kubelet); !apierrors.IsForbidden(err) {
			return fmt.Errorf("it is not there yet: %w", err)
		}
		return nil
	})
	attempts(t, kubelet, []try{
		{"an annotation of its own", annotate("volumes.kubernetes.io/controller-managed-attach-detach", `"true"`), ""},
		{"takes that back", annotate("volumes.kubernetes.io/controller-managed-attach-detach", `null`), ""},
		{"its status", patch(mine, types.StrategicMergePatchType, `{"status": {"conditions": [`+row("Ready", "True")+`]}}`, "status"), ""},
		{"a label", patch(mine, types.MergePatchType, `{"metadata": {"labels": {"example.com/a": "b"}}}`), ""},
		{"the record forged", annotate(record, `"{\"taints\":[]}"`), refusal + record},
		{"the record forged by its status", annotate(record, `"{\"taints\":[]}"`, "status"), refusal + record},
		{"the record gone", annotate(record, `null`), refusal + record},
		{"a veto against its repair", annotate(veto, `"true"`), refusal + veto},
		{"another annotation of ours", annotate("autohealer.resourcestack.com/later", `"x"`), refusal + "autohealer.resourcestack.com/later"},
		{"a confirmation that it is healthy", annotate("remediation.medik8s.io/manually-confirmed-healthy", `"x"`), refusal + "remediation.medik8s.io/manually-confirmed-healthy"},
		{"all annotations gone", patch(mine, types.MergePatchType, `{"metadata": {"annotations": null}}`), refusal},
	})
	// A kubelet may also create its node with annotations.
	if config, err = c.NodeConfig("node-0009"); err != nil {
		t.Fatal(err)
	}
	joins := func(annotations string) apiCall {
		return creates(nodePath, `{"metadata": {"name": "node-0009", "annotations": {`+annotations+`}}}`)
	}
	attempts(t, clientFor(t, config), []try{
		{"a new node with a record", joins(`"` + record + `": "{}"`), refusal + record},
		{"a new node", joins(`"example.com/a": "b"`), ""},
	})
}

// mightyController returns a client with a token of the controller and all rights of the
// cluster: every refusal is by the admission policies.
func (c cluster) mightyController(t *testing.T) kubernetes.Interface {
	t.Helper()
	client := clientFor(t, testkit.Value(c.ServiceAccountConfig(t.Context(), namespace, account)).Must(t))
	c.empowers(t, namespace, account, client)
	testkit.Eventually(t, "the guard", isForbidden(t, client, createLease(namespace, "x")))
	return client
}

// guardsController makes the controller's necessary writes, and the writes of a thief of
// its token.
func (c cluster) guardsController(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	admin := clientFor(t, c.AdminConfig())
	// The maximal content of an agent: the cost of the expressions is limited.
	full := func(status, reason string) (rows []string) {
		for i := range report.MostConditions {
			said := strings.Replace(row(fmt.Sprintf("Row%04d", i), status), "100% of it", strings.Repeat("x", report.LongestMessage), 1)
			rows = append(rows, strings.Replace(said, "Tested", reason, 1))
		}
		return rows
	}
	for _, prepare := range []apiCall{
		apply(theirs, full("False", "Tested")...), createLease("medik8s-leases", "node-theirs"), createLease(namespace, "autohealer-agent-"+theirs),
		apply(mine, row("KernelDeadlock", "True"), row("XfsShutdown", "False")),
		patch(mine, types.StrategicMergePatchType, `{"spec": {"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}, {"key": "example.com/theirs", "effect": "NoSchedule"}]},
			"metadata": {"annotations": {"theirs": "x", "remediation.medik8s.io/manually-confirmed-healthy": ""}}}`),
	} {
		testkit.Must(t, prepare(t.Context(), admin))
	}
	// hooks updates the webhook configuration.
	hooks := func(change func(*admissionv1.ValidatingWebhookConfiguration)) apiCall {
		return func(ctx context.Context, client kubernetes.Interface) error {
			configs := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
			config, err := configs.Get(ctx, "autohealer", metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(config)
			_, err = configs.Update(ctx, config, metav1.UpdateOptions{})
			return err
		}
	}
	type configuration = *admissionv1.ValidatingWebhookConfiguration
	merge := func(node, body string, subresources ...string) apiCall {
		return patchAs(account, node, types.MergePatchType, body, subresources...)
	}
	silent := func(kind, status, reason string) string {
		return fmt.Sprintf(`{"type": %q, "status": %q, "reason": %q, "message": "x", "lastHeartbeatTime": "2026-11-15T12:00:00Z", "lastTransitionTime": "2026-11-15T13:00:00Z"}`, kind, status, reason)
	}
	taints := func(keys ...string) apiCall {
		var list []string
		for _, key := range keys {
			list = append(list, fmt.Sprintf(`{"key": %q, "effect": "NoSchedule"}`, key))
		}
		return merge(mine, `{"spec": {"taints": [`+strings.Join(list, ", ")+`]}}`)
	}
	takeLease := func(name, holder string) apiCall {
		return merges(leasePath("medik8s-leases")+"/"+name, fmt.Sprintf(`{"spec": {"holderIdentity": %q}}`, holder))
	}
	createMap := func(name string) apiCall { return creates("/api/v1/namespaces/"+namespace+"/configmaps", named(name)) }
	createRevision := func(name, label string) apiCall {
		return creates("/apis/apps/v1/namespaces/"+namespace+"/controllerrevisions", fmt.Sprintf(`{"metadata": {"name": %q, "labels": {%q: "x"}}, "data": {}, "revision": 1}`, name, label))
	}
	tellOld := func(controller, component string) apiCall {
		return creates(eventPath, fmt.Sprintf(`{"metadata": {"generateName": "e-"}, "reportingComponent": %q, "source": {"component": %q}, "reason": "Tested", "type": "Normal",
			"involvedObject": {"kind": "Node", "name": %q, "namespace": "default"}}`, controller, component, mine))
	}
	const certSecret = "autohealer-webhook-cert"
	secretPath := func(in string) string { return "/api/v1/namespaces/" + in + "/secrets" }
	patchSecret := func(in, name, body string) apiCall { return merges(secretPath(in)+"/"+name, body) }
	createSecret := func(in, name string) apiCall { return creates(secretPath(in), named(name)) }
	testkit.Must(t, errors.Join(createSecret("default", certSecret)(t.Context(), admin),
		patchSecret(namespace, certSecret, `{"data": {"foreign": "eA=="}}`)(t.Context(), admin)))
	const (
		ownEvents   = "the controller may create Events whose reportingController is autohealer-controller, and not "
		oneSecret   = "of Secrets the controller may change autohealer-system/autohealer-webhook-cert, and no other"
		bundle      = "of its webhooks the controller may change clientConfig.caBundle, and "
		oneHook     = "of webhook configurations the controller may change the ValidatingWebhookConfiguration autohealer, and no other"
		spec        = "of a node the controller may write taints, and not spec."
		metadata    = "of a node the controller may not write metadata."
		annotation  = "of the annotations of a node the controller may write its own, and not "
		components  = "the controller may not write taints that other components keep: "
		status      = "of the status of a node the controller may write conditions, and not "
		ofAgents    = "the controller may write conditions of an agent, to be Unknown with the reason AgentSilent, and not "
		ownLeases   = "the controller may write the Lease autohealer-controller, and those of nodes that a health check holds, and not "
		onlyLedger  = "the controller may write the ConfigMaps of the ledger, and not "
		ownRevision = "the controller may write the ControllerRevisions that have its label, and not "
		ofAgent     = "the controller may not make conditions those of an agent: "
		theirRow    = "NTPProblem"
	)
	// The API server believes these managedFields, except through the status.
	const claim = `{"metadata": {"managedFields": [{"manager": "autohealer-agent", "operation": "Apply", "apiVersion": "v1", "subresource": "status", "fieldsType": "FieldsV1",
		"fieldsV1": {"f:status": {"f:conditions": {"k:{\"type\":\"` + theirRow + `\"}": {".": {}, "f:type": {}}}}}}]}}`
	attempts(t, client, []try{
		{"writes its CA bundle", hooks(func(config configuration) {
			for i := range config.Webhooks {
				config.Webhooks[i].ClientConfig.CABundle = c.AdminConfig().CAData
			}
		}), ""},
		{"writes another CA bundle", hooks(func(config configuration) {
			config.Webhooks[0].ClientConfig.CABundle = slices.Concat(c.AdminConfig().CAData, []byte("\n"))
		}), ""},
		{"registers its webhook for Secrets", hooks(func(config configuration) {
			config.Webhooks[0].Rules[0].APIGroups, config.Webhooks[0].Rules[0].Resources = []string{""}, []string{"secrets"}
		}), bundle + "nothing else of "},
		{"adds a webhook for Secrets", hooks(func(config configuration) {
			more := *config.Webhooks[0].DeepCopy()
			more.Name = "more.example.com"
			config.Webhooks = append(config.Webhooks, more)
		}), bundle + "nothing else of more.example.com"},
		{"removes a webhook", hooks(func(config configuration) { config.Webhooks = config.Webhooks[1:] }), bundle + "nothing else of "},
		{"changes the address of a webhook", hooks(func(config configuration) { config.Webhooks[0].ClientConfig.Service.Name = "theirs" }), bundle + "nothing else of "},
		{"fewer conditions", hooks(func(config configuration) { config.Webhooks[0].MatchConditions = nil }), bundle + "nothing else of "},
		{"adds a finalizer to the webhooks", hooks(func(config configuration) { config.Finalizers = []string{"example.com/stay"} }), bundle + "not the metadata"},
		{"another configuration", creates("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", named("theirs")), oneHook},
		{"creates a mutating webhook", creates("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", named("autohealer")), oneHook},
		{"deletes the webhooks", deletes("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/autohealer"), oneHook},

		{"places a taint", taints("node.kubernetes.io/unschedulable", "example.com/theirs", "example.com/ours"), ""},
		{"removes its taint", taints("node.kubernetes.io/unschedulable", "example.com/theirs"), ""},
		{"removes a taint of Kubernetes", taints("example.com/theirs"), components + "node.kubernetes.io/unschedulable"},
		{"places a taint of Karpenter", taints("node.kubernetes.io/unschedulable", "karpenter.sh/disrupted"), components + "karpenter.sh/disrupted"},
		{"places a taint of the Cluster Autoscaler", taints("node.kubernetes.io/unschedulable", "ToBeDeletedByClusterAutoscaler"), components + "ToBeDeletedByClusterAutoscaler"},
		{"writes the record", merge(mine, `{"metadata": {"annotations": {"autohealer.resourcestack.com/record": "{}"}}}`), ""},
		{"removes the record", merge(mine, `{"metadata": {"annotations": {"autohealer.resourcestack.com/record": null}}}`), ""},
		{"removes a confirmation", merge(mine, `{"metadata": {"annotations": {"remediation.medik8s.io/manually-confirmed-healthy": null}}}`), ""},
		{"confirms", merge(mine, `{"metadata": {"annotations": {"remediation.medik8s.io/manually-confirmed-healthy": ""}}}`), annotation + "remediation.medik8s.io/manually-confirmed-healthy"},
		{"writes an annotation of another writer", merge(mine, `{"metadata": {"annotations": {"theirs": "y"}}}`), annotation + "theirs"},
		{"deletes an annotation of another writer", merge(mine, `{"metadata": {"annotations": {"theirs": null}}}`), annotation + "theirs"},
		{"writes its annotation by the status", merge(mine, `{"metadata": {"annotations": {"autohealer.resourcestack.com/record": "{}"}}}`, "status"), annotation + "autohealer.resourcestack.com/record"},
		{"a label", merge(mine, `{"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}`), metadata + "labels"},
		{"a finalizer", merge(mine, `{"metadata": {"finalizers": ["example.com/stay"]}}`), metadata + "finalizers"},
		{"a label by the status", merge(mine, `{"metadata": {"labels": {"a": "b"}}}`, "status"), metadata + "labels"},
		{"a cordon", merge(mine, `{"spec": {"unschedulable": true}}`), spec + "unschedulable"},
		{"a network of pods", merge(theirs, `{"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}}`), spec + "podCIDR"},
		{"an address", merge(mine, `{"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}`, "status"), status + "addresses"},
		{"the images", merge(mine, `{"status": {"images": null}}`, "status"), status + "images"},
		{"reports that a node is not ready", patchAs(account, mine, types.StrategicMergePatchType, `{"status": {"conditions": [`+row("Ready", "False")+`]}}`, "status"), ofAgents + "Ready"},
		{"reports a node as Unknown", patchAs(account, mine, types.StrategicMergePatchType, `{"status": {"conditions": [`+silent("Ready", "Unknown", "AgentSilent")+`]}}`, "status"), ofAgents + "Ready"},
		{"writes a condition of another agent", applyBody(mine, agent, `"status": {"conditions": [`+row("KernelDeadlock", "True")+`, `+row("XfsShutdown", "False")+`, `+silent(theirRow, "Unknown", "AgentSilent")+`]}`), ofAgents + theirRow},
		{"a new condition", apply(mine, row("KernelDeadlock", "True"), row("XfsShutdown", "False"), silent("New", "Unknown", "AgentSilent")), ofAgents + "New"},
		{"clears a condition of the agent", apply(mine, row("KernelDeadlock", "False"), row("XfsShutdown", "False")), ofAgents + "KernelDeadlock"},
		{"deletes a condition of the agent", apply(mine, row("KernelDeadlock", "True")), ofAgents + "XfsShutdown"},
		{"claims an unchanged condition of Kubernetes for the agent", apply(mine, row("KernelDeadlock", "True"), row("XfsShutdown", "False"), `{"type": "Ready"}`), ofAgent + "Ready"},
		{"then writes that condition", apply(mine, row("KernelDeadlock", "True"), row("XfsShutdown", "False"), silent("Ready", "Unknown", "AgentSilent")), ofAgents + "Ready"},
		{"claims a condition of another writer for the agent", apply(mine, row("KernelDeadlock", "True"), row("XfsShutdown", "False"), `{"type": "`+theirRow+`"}`), ofAgent + theirRow},
		{"writes managedFields in the name of the agent", merge(mine, claim), ofAgent + theirRow},
		{"marks the agent as silent", apply(mine, silent("KernelDeadlock", "Unknown", "AgentSilent"), row("XfsShutdown", "False")), ""},
		{"marks an agent with the maximal content as silent", apply(theirs, full("Unknown", "AgentSilent")...), ""},
		{"reports a condition of the agent as healthy", apply(theirs, full("False", "Tested")...), ofAgents + "Row0000, Row0001"},
		{"a condition of Kubernetes that the agent has", func(ctx context.Context, client kubernetes.Interface) error {
			if err := apply(mine, row("KernelDeadlock", "True"), row("XfsShutdown", "False"), `{"type": "Ready"}`)(ctx, admin); err != nil {
				return err
			}
			return apply(mine, row("KernelDeadlock", "True"), row("XfsShutdown", "False"), silent("Ready", "Unknown", "AgentSilent"))(ctx, client)
		}, ofAgents + "Ready"},
		{"deletes a node", deletes(nodePath + "/" + mine), "the controller may neither create nor delete nodes"},
		{"a new node", creates(nodePath, named("node-0008")), "the controller may neither create nor delete nodes"},

		{"a policy of its own", creates(policyPath, repairPolicy("own", "")), ownMirrors + "repairpolicies own"},
		{"a mirror", creates(policyPath, repairPolicy("nodepool-a", mirrorLabel)), ""},
		{"the spec of a mirror", merges(policyPath+"/nodepool-a", `{"spec": {"repair": {"enabled": false}}}`), ""},
		{"a policy of a user", merges(policyPath+"/users", `{"spec": {"repair": {"enabled": false}}}`), ownMirrors + "repairpolicies users"},
		{"makes a policy of a user a mirror", merges(policyPath+"/users", `{"metadata": {"labels": {`+mirrorLabel+`}}}`), ownMirrors + "repairpolicies users"},
		{"deletes a policy of a user", deletes(policyPath + "/users"), ownMirrors + "repairpolicies users"},
		{"the status of a policy of a user", merges(policyPath+"/users/status", `{"status": {"nodes": 3}}`), ""},

		{"creates the guardrails", creates(railsPath, guardrailsText("")), ownMirrors + "guardrails cluster"},
		{"creates the guardrails as a mirror", creates(railsPath, guardrailsText(mirrorLabel)), ownMirrors + "guardrails cluster"},
		{"loosens the guardrails", func(ctx context.Context, client kubernetes.Interface) error {
			if err := creates(railsPath, guardrailsText(""))(ctx, admin); err != nil {
				return err
			}
			return merges(railsPath+"/cluster", `{"spec": {"maxInTreatment": "100%"}}`)(ctx, client)
		}, ownMirrors + "guardrails cluster"},
		{"releases a hold", merges(railsPath+"/cluster", `{"metadata": {"annotations": {"autohealer.resourcestack.com/release-hold": "until=2099-01-01T00:00:00Z"}}}`), ownMirrors + "guardrails cluster"},
		{"deletes the guardrails", deletes(railsPath + "/cluster"), ownMirrors + "guardrails cluster"},
		{"the status of the guardrails", merges(railsPath+"/cluster/status", `{"status": {"nodes": 3}}`), ""},

		{"leads", createLease(namespace, account), ""},
		{"the Lease of an agent", renewLease(namespace, "autohealer-agent-"+theirs), ownLeases + namespace + "/autohealer-agent-" + theirs},
		{"takes the Lease of a node", takeLease("node-theirs", "NodeHealthCheck-c"), ""},
		{"gives the Lease to another holder", takeLease("node-theirs", "other"), ownLeases + "medik8s-leases/node-theirs"},
		{"releases the Lease", deletes(leasePath("medik8s-leases") + "/node-theirs"), ""},
		{"the ledger", createMap("autohealer-ledger"), ""},
		{"another ConfigMap", createMap("other"), onlyLedger + "other"},
		{"a stored revision", createRevision("r1", "autohealer.resourcestack.com/kept-condition-sets"), ""},
		{"another revision", createRevision("r2", "controller-revision-hash"), ownRevision + "r2"},

		{"writes its own Event", newEvent(account, mine), ""},
		{"writes an Event as the kubelet", newEvent("kubelet", mine), ownEvents + "kubelet"},
		{"writes an Event of the core group as the kubelet", tellOld("", "kubelet"), strings.TrimSpace(ownEvents)},
		{"writes an Event as the kubelet and itself", tellOld(account, "kubelet"), ownEvents + "kubelet"},
		{"deletes an Event", deletes(eventPath), "the controller may create Events, and neither change nor delete any"},
		{"a new certificate", patchSecret(namespace, certSecret, `{"data": {"ca.crt": "eA==", "ca.key": "eA==", "tls.crt": "eA==", "tls.key": "eA=="}}`), ""},
		{"another key in its Secret", patchSecret(namespace, certSecret, `{"data": {"stolen": "eA=="}}`), "of its Secret the controller may change the keys of the certificate, and not stolen"},
		{"a key of another owner removed", patchSecret(namespace, certSecret, `{"data": {"foreign": null}}`), "of its Secret the controller may change the keys of the certificate, and not foreign"},
		{"a finalizer of the Secret", patchSecret(namespace, certSecret, `{"metadata": {"finalizers": ["example.com/stay"]}}`), "of its Secret the controller may change the data, and nothing else"},
		{"a Secret of that name elsewhere", patchSecret("default", certSecret, `{"data": {"tls.crt": "eA=="}}`), oneSecret},
		{"a Secret with a token", createSecret(namespace, "other"), oneSecret},
		{"deletes its Secret", deletes(secretPath(namespace) + "/" + certSecret), oneSecret},
	})

	// Other clients must not write mirrors.
	attempts(t, admin, []try{
		{"a mirror", creates(policyPath, repairPolicy("nodepool-b", mirrorLabel)), onlyTheController},
		{"the spec of a mirror", merges(policyPath+"/nodepool-a", `{"spec": {"repair": {"enabled": true}}}`), onlyTheController},
		{"the label of a mirror", merges(policyPath+"/nodepool-a", `{"metadata": {"labels": null}}`), onlyTheController},
		{"the status of a mirror", merges(policyPath+"/nodepool-a/status", `{"status": {"nodes": 3}}`), onlyTheController},
		{"makes a policy a mirror", merges(policyPath+"/users", `{"metadata": {"labels": {`+mirrorLabel+`}}}`), onlyTheController},
		{"the owners of a mirror", merges(policyPath+"/nodepool-a", `{"metadata": {"ownerReferences": [{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": "a", "uid": "u"}]}}`), ""},
		{"deletes a mirror, which the controller writes again", deletes(policyPath + "/nodepool-a"), ""},
	})

	// None of this affects other clients.
	for name, do := range map[string]apiCall{
		"a label":     merge(mine, `{"metadata": {"labels": {"a": "b"}}}`),
		"a taint":     taints("karpenter.sh/disrupted"),
		"a ConfigMap": createMap("other"),
		"a Secret":    createSecret(namespace, "other"),
		"an Event":    newEvent("kubelet", mine),
		"a webhook":   hooks(func(config configuration) { config.Webhooks = config.Webhooks[:1] }),
	} {
		if err := do(t.Context(), admin); err != nil {
			t.Errorf("%s by the admin: %v", name, err)
		}
	}
}

// guardsClaims does the same with NodeClaims, NodePools and their CRD.
func (c cluster) guardsClaims(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	testkit.Must(t, karpenter.InstallCRDs(t.Context(), c.Cluster))
	admin := clientFor(t, c.AdminConfig())
	const (
		claimPath = "/apis/karpenter.sh/v1/nodeclaims"
		poolPath  = "/apis/karpenter.sh/v1/nodepools"
		crdPath   = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
		claim     = `{"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "spec": {"nodeClassRef": {"group": "example.com", "kind": "Class", "name": "c"}, "requirements": []}, `
		pool      = `{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "spec": {"template": {"spec": {"nodeClassRef": {"group": "example.com", "kind": "Class", "name": "c"}, "requirements": []}}}, `
		unmarked  = "the controller may delete a NodeClaim only after it has noted so"
		claimMeta = "of the metadata of Karpenter's objects the controller may write the annotations"
		claimSpec = "of the spec of Karpenter's objects the controller may write the repair block"
	)
	for _, prepare := range []apiCall{
		creates(claimPath, claim+`"metadata": {"name": "c1", "annotations": {"theirs": "x"}}}`),
		creates(claimPath, claim+`"metadata": {"name": "c2"}}`),
		creates(poolPath, pool+`"metadata": {"name": "p1"}}`),
	} {
		testkit.Must(t, prepare(t.Context(), admin))
	}
	attempts(t, client, []try{
		{"deletes a NodeClaim without a mark", deletes(claimPath + "/c1"), unmarked},
		{"marks it", merges(claimPath+"/c1", `{"metadata": {"annotations": {"autohealer.resourcestack.com/repair": "{}", "karpenter.sh/nodeclaim-termination-timestamp": "2026-11-15T12:00:00Z"}}}`), ""},
		{"removes the mark", merges(claimPath+"/c1", `{"metadata": {"annotations": {"autohealer.resourcestack.com/repair": null, "karpenter.sh/nodeclaim-termination-timestamp": null}}}`), ""},
		{"marks it again", merges(claimPath+"/c1", `{"metadata": {"annotations": {"autohealer.resourcestack.com/repair": "{}"}}}`), ""},
		{"another annotation of it", merges(claimPath+"/c1", `{"metadata": {"annotations": {"theirs": "y"}}}`), claimMeta},
		{"its finalizers", merges(claimPath+"/c1", `{"metadata": {"finalizers": ["example.com/stay"]}}`), claimMeta},
		{"its labels", merges(claimPath+"/c1", `{"metadata": {"labels": {"karpenter.sh/nodepool": "other"}}}`), claimMeta},
		{"its status", merges(claimPath+"/c1/status", `{"status": {"providerID": "x"}}`), "the controller may not update nodeclaims c1"},
		{"a new NodeClaim", creates(claimPath, claim+`"metadata": {"name": "c3"}}`), "the controller may not create nodeclaims c3"},
		{"deletes a marked NodeClaim", deletes(claimPath + "/c1"), ""},
		{"deletes a NodePool", deletes(poolPath + "/p1"), "the controller may not delete nodepools p1"},
		{"the limits of a NodePool", merges(poolPath+"/p1", `{"spec": {"limits": {"cpu": "1"}}}`), claimSpec},
		{"an annotation of a NodePool", merges(poolPath+"/p1", `{"metadata": {"annotations": {"autohealer.resourcestack.com/repair": "{}"}}}`), claimMeta},
		{"restores the schema of the repair block", rawly("PATCH", crdPath+"/nodepools.karpenter.sh", types.JSONPatchType, string(deploy.NodePoolPatch())), ""},
		{"another conversion of NodePools", merges(crdPath+"/nodepools.karpenter.sh", `{"spec": {"conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://example.com"}}}}}`), claimSpec},
		{"deletes the CRD of NodePools", rawly("PATCH", crdPath+"/nodepools.karpenter.sh", types.JSONPatchType, `[{"op": "replace", "path": "/spec/versions/0/served", "value": false}]`), claimSpec},
		{"the schema of another kind", merges(crdPath+"/nodeclaims.karpenter.sh", `{"metadata": {"annotations": {"a": "b"}}}`), "the controller may not update customresourcedefinitions nodeclaims.karpenter.sh"},
	})
	// The restored schema allows a repair block in a NodePool.
	testkit.Eventually(t, "the repair block to be restored", func() error {
		if err := merges(poolPath+"/p1", `{"spec": {"repair": {"enabled": true}}}`)(t.Context(), client); err != nil {
			return err
		}
		out, err := c.Kubectl(t.Context(), "get", "nodepool", "p1", "-o", "jsonpath={.spec.repair}")
		if err == nil && out == "" {
			err = errors.New("it is pruned")
		}
		return err
	})
	if err := deletes(claimPath+"/c2")(t.Context(), admin); err != nil {
		t.Errorf("the admin may not delete a NodeClaim: %v", err)
	}
}
