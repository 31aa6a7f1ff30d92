package karpenter_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// decode reads an object as clients do, by its kind.
func decode[T runtime.Object](t *testing.T, text string) T {
	t.Helper()
	scheme := runtime.NewScheme()
	testkit.Must(t, karpenter.AddToScheme(scheme))
	body, err := yaml.ToJSON([]byte(text))
	testkit.Must(t, err)
	object, err := runtime.Decode(serializer.NewCodecFactory(scheme).UniversalDeserializer(), body)
	testkit.Must(t, err)
	read, ok := object.(T)
	testkit.Require(t, ok, "read %T", object)
	return read
}

// wholeClaim is a claim of Karpenter 1.15, with many unused fields.
const wholeClaim = `
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata:
  name: default-x7k2p
  uid: 8d1f3b52-3c1d-4b0e-9a6b-0f2a55c2f001
  resourceVersion: "4711"
  generation: 1
  creationTimestamp: "2026-03-01T12:00:00Z"
  finalizers: [karpenter.sh/termination]
  labels:
    karpenter.sh/nodepool: default
    karpenter.sh/capacity-type: spot
    kubernetes.io/arch: amd64
    node.kubernetes.io/instance-type: c-4x-amd64-linux
    topology.kubernetes.io/zone: test-zone-a
  annotations:
    karpenter.sh/nodepool-hash: "6821555240594823858"
    karpenter.sh/nodepool-hash-version: v3
  ownerReferences:
  - {apiVersion: karpenter.sh/v1, kind: NodePool, name: default, uid: p1, blockOwnerDeletion: true}
  managedFields:
  - {manager: karpenter, operation: Update, apiVersion: karpenter.sh/v1, time: "2026-03-01T12:00:00Z", fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:requirements": {}}}}
spec:
  expireAfter: Never
  nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
  requirements:
  - {key: node.kubernetes.io/instance-type, operator: In, values: [c-4x-amd64-linux, m-4x-amd64-linux]}
  resources: {requests: {cpu: 3100m, pods: "8"}}
  startupTaints:
  - {key: cilium, value: "true", effect: NoExecute}
  terminationGracePeriod: 30m0s
status:
  providerID: kwok://default-x7k2p
  nodeName: default-x7k2p-node
  imageID: ami-1
  capacity: {cpu: "4"}
  conditions:
  - {type: Initialized, status: Unknown, reason: NodeNotReady, message: Node status is NotReady, lastTransitionTime: "2026-03-01T12:00:30Z", observedGeneration: 1}
  - {type: Registered, status: "True", reason: Registered, message: "", lastTransitionTime: "2026-03-01T12:00:20Z", observedGeneration: 1}
`

func TestNodeClaimIsReadWithWhatIsUsed(t *testing.T) {
	got := decode[*karpenter.NodeClaim](t, wholeClaim)
	if got.Name != "default-x7k2p" || got.UID == "" || got.ResourceVersion != "4711" || got.Labels[karpenter.NodePoolLabel] != "default" ||
		got.Labels[karpenter.CapacityTypeLabel] != "spot" || len(got.Annotations) != 2 || len(got.Finalizers) != 1 || got.CreationTimestamp.IsZero() {
		t.Errorf("metadata is %+v", got.ObjectMeta)
	}
	testkit.Check(t, got.ManagedFields == nil, "managedFields are kept")
	at := func(s string) metav1.Time {
		var stamp metav1.Time
		testkit.Must(t, stamp.UnmarshalQueryParameter(s))
		return stamp
	}
	want := karpenter.NodeClaim{
		Spec: karpenter.NodeClaimSpec{
			StartupTaints:          []corev1.Taint{{Key: "cilium", Value: "true", Effect: "NoExecute"}},
			TerminationGracePeriod: "30m0s",
		},
		Status: karpenter.NodeClaimStatus{
			ProviderID: "kwok://default-x7k2p", NodeName: "default-x7k2p-node",
			Conditions: []metav1.Condition{
				{Type: "Initialized", Status: "Unknown", Reason: "NodeNotReady", Message: "Node status is NotReady", LastTransitionTime: at("2026-03-01T12:00:30Z"), ObservedGeneration: 1},
				{Type: "Registered", Status: "True", Reason: "Registered", LastTransitionTime: at("2026-03-01T12:00:20Z"), ObservedGeneration: 1},
			},
		},
	}
	testkit.Equal(t, "spec", want.Spec, got.Spec)
	testkit.Equal(t, "status", want.Status, got.Status)
}

// wholePool is the NodePool of the design document, in the current API version and with all
// required fields.
const wholePool = `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata:
  name: default
  managedFields:
  - {manager: kubectl, operation: Apply, apiVersion: karpenter.sh/v1, fieldsType: FieldsV1, fieldsV1: {"f:spec": {}}}
spec:
  disruption:
    consolidateAfter: Never
    budgets:
    - {nodes: 10%}
    - {nodes: "0", schedule: "0 9 * * mon-fri", duration: 8h, reasons: [Unhealthy, Drifted]}
  limits: {cpu: "1000"}
  replicas: 3
  template:
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      startupTaints: [{key: cilium, effect: NoExecute}]
  repair:
    defaultTolerationDuration: 30m
    policies:
    - {conditionType: Ready, toleration: 45m}
    - {conditionType: NetworkUnavailable, toleration: 10m}
status:
  nodes: 3
`

func TestNodePoolIsReadWithWhatIsUsed(t *testing.T) {
	got := decode[*karpenter.NodePool](t, wholePool)
	testkit.Check(t, got.Name == "default" && got.ManagedFields == nil, "metadata is %+v", got.ObjectMeta)
	want := karpenter.NodePoolSpec{
		Repair: &v1alpha1.RepairSpec{
			DefaultTolerationDuration: "30m",
			Policies: []v1alpha1.ConditionRepair{
				{ConditionType: "Ready", Toleration: "45m"}, {ConditionType: "NetworkUnavailable", Toleration: "10m"},
			},
		},
		Disruption: karpenter.Disruption{Budgets: []karpenter.Budget{
			{Nodes: "10%"},
			{Nodes: "0", Schedule: new("0 9 * * mon-fri"), Duration: "8h", Reasons: []string{"Unhealthy", "Drifted"}},
		}},
		Template: karpenter.NodeTemplate{Spec: karpenter.NodeTemplateSpec{NodeClassRef: karpenter.NodeClassRef{Group: "karpenter.kwok.sh"}, StartupTaints: []corev1.Taint{{Key: "cilium", Effect: "NoExecute"}}}},
		Replicas: new(int64(3)),
	}
	testkit.Equal(t, "spec", want, got.Spec)
}

// Package budget interprets the difference.
func TestAbsentAndEmptyBudgetsAreNotTheSame(t *testing.T) {
	for text, want := range map[string][]karpenter.Budget{
		`{}`:                          nil,
		`{"budgets":null}`:            nil,
		`{"budgets":[]}`:              {},
		`{"budgets":[{"nodes":"1"}]}`: {{Nodes: "1"}},
		`{"budgets":[{"reasons":[],"nodes":"1"}]}`: {{Nodes: "1", Reasons: []string{}}},
	} {
		var read karpenter.Disruption
		testkit.Must(t, json.Unmarshal([]byte(text), &read))
		written, err := json.Marshal((&karpenter.NodePool{Spec: karpenter.NodePoolSpec{Disruption: read}}).DeepCopy().Spec.Disruption)
		testkit.Must(t, err)
		testkit.Equal(t, text, want, read.Budgets)
		if text != `{"budgets":null}` && string(written) != text {
			t.Errorf("%s is written as %s", text, written)
		}
	}
}

func TestWhatDoesNotFitHidesNothingElse(t *testing.T) {
	list := func(kind string, items ...string) string {
		return `{"apiVersion":"karpenter.sh/v1","kind":"` + kind + `List","items":[` + strings.Join(items, ",") + `]}`
	}
	t.Run("in claims", func(t *testing.T) {
		got := decode[*karpenter.NodeClaimList](t, list("NodeClaim",
			`{"metadata":{"name":"spec"},"spec":7,"status":{"providerID":"a"}}`,
			`{"metadata":{"name":"status"},"spec":{"startupTaints":[{"key":"k"}]},"status":"odd"}`,
			`{"metadata":{"name":"fields"},"spec":{"startupTaints":{},"terminationGracePeriod":5},"status":{"providerID":1,"nodeName":"n","conditions":true}}`,
			`{"metadata":{"name":"rows"},"spec":{"startupTaints":[{"key":1},{"key":"k"}]},"status":{"conditions":[{"type":"Initialized","status":"True"},{"type":"Ready","lastTransitionTime":"soon"},3]}}`,
			`{"metadata":{"name":"fine"},"status":{"providerID":"b"}}`,
		))
		var names []string
		for _, item := range got.Items {
			names = append(names, item.Name)
		}
		if diff := cmp.Diff([]string{"spec", "status", "fields", "rows", "fine"}, names); diff != "" {
			t.Fatalf("names (-want +got):\n%s", diff)
		}
		if got.Items[0].Status.ProviderID != "a" || len(got.Items[1].Spec.StartupTaints) != 1 || got.Items[2].Status.NodeName != "n" ||
			got.Items[4].Status.ProviderID != "b" {
			t.Errorf("lost what fits: %+v", got.Items)
		}
		if rows := got.Items[3]; len(rows.Spec.StartupTaints) != 1 || !rows.Is(karpenter.Initialized) || len(rows.Status.Conditions) != 1 {
			t.Errorf("lost rows that fit: %+v", rows)
		}
	})
	t.Run("in pools", func(t *testing.T) {
		block := `"repair":{"defaultTolerationDuration":"5m"}`
		got := decode[*karpenter.NodePoolList](t, list("NodePool",
			`{"metadata":{"name":"template"},"spec":{"template":7,"replicas":"many",`+block+`}}`,
			`{"metadata":{"name":"taints"},"spec":{"template":{"spec":{"startupTaints":[{"key":"k"},"odd"]}},`+block+`}}`,
			`{"metadata":{"name":"budgets"},"spec":{"disruption":{"budgets":"none"},`+block+`}}`,
			`{"metadata":{"name":"budget"},"spec":{"disruption":{"budgets":[{"nodes":5},{"nodes":"5"}]},`+block+`}}`,
			`{"metadata":{"name":"disruption"},"spec":{"disruption":[],`+block+`}}`,
			`{"metadata":{"name":"none"},"spec":{"repair":null}}`,
			`{"metadata":{"name":"block"},"spec":{"repair":{"policies":{}},"disruption":{"budgets":[{"nodes":"7"}]}}}`,
			`{"metadata":{"name":"number"},"spec":{"repair":5}}`,
		))
		testkit.Require(t, len(got.Items) == 8, "read %d pools", len(got.Items))
		for _, pool := range got.Items[:5] {
			if pool.Spec.Repair == nil || pool.Spec.Repair.DefaultTolerationDuration != "5m" || pool.Spec.Repair.Unreadable != "" {
				t.Errorf("%s: its block is %+v", pool.Name, pool.Spec.Repair)
			}
		}
		if n := len(got.Items[1].Spec.Template.Spec.StartupTaints); n != 1 {
			t.Errorf("%d startup taints are read", n)
		}
		for i, wantUnreadable := range map[int][]bool{2: {true}, 3: {true, false}, 4: {true}, 6: {false}} {
			var unreadable []bool
			for _, budget := range got.Items[i].Spec.Disruption.Budgets {
				unreadable = append(unreadable, budget.Unreadable != "")
			}
			testkit.Equal(t, "unreadable budgets of "+got.Items[i].Name, wantUnreadable, unreadable)
		}
		if got.Items[5].Spec.Repair != nil {
			t.Errorf("a block of null is %+v", got.Items[5].Spec.Repair)
		}
		for _, pool := range got.Items[6:] {
			testkit.Check(t, pool.Spec.Repair != nil && pool.Spec.Repair.Unreadable != "", "%s: its block is %+v", pool.Name, pool.Spec.Repair)
		}
	})
}

// The API server guarantees the metadata of an object.
func FuzzWhatDoesNotFitIsNeverAnError(f *testing.F) {
	f.Add([]byte(`{"startupTaints":[{"key":"a","effect":"NoExecute"}],"terminationGracePeriod":"1h"}`), []byte(`{"providerID":"a","conditions":[{"type":"Ready","status":"True"}]}`))
	f.Add([]byte(`{"repair":{"policies":[{"conditionType":"Ready"}]},"disruption":{"budgets":[{"nodes":"1","reasons":[]}]},"replicas":3}`), []byte(`7`))
	f.Add([]byte(`{"template":{"spec":{"startupTaints":[1]}},"disruption":{"budgets":[null]},"repair":[]}`), []byte(`{"conditions":[1]}`))
	f.Add([]byte(`7`), []byte(`null`))
	f.Fuzz(func(t *testing.T, spec, status []byte) {
		if !json.Valid(spec) || !json.Valid(status) {
			return
		}
		body := []byte(`{"spec":` + string(spec) + `,"status":` + string(status) + `}`)
		var claim karpenter.NodeClaim
		if err := json.Unmarshal(body, &claim); err != nil {
			t.Errorf("claim: %v", err)
		}
		var pool karpenter.NodePool
		if err := json.Unmarshal(body, &pool); err != nil {
			t.Errorf("pool: %v", err)
		}
		var fields map[string]any
		testkit.Check(t, json.Unmarshal(spec, &fields) != nil || fields["repair"] == nil || pool.Spec.Repair != nil, "the block is lost")
	})
}

func TestDeepCopySharesNothing(t *testing.T) {
	claims := &karpenter.NodeClaimList{ListMeta: metav1.ListMeta{RemainingItemCount: new(int64(1))}, Items: []karpenter.NodeClaim{*decode[*karpenter.NodeClaim](t, wholeClaim)}}
	pools := &karpenter.NodePoolList{ListMeta: metav1.ListMeta{RemainingItemCount: new(int64(1))}, Items: []karpenter.NodePool{*decode[*karpenter.NodePool](t, wholePool)}}
	for _, list := range []runtime.Object{claims, pools} {
		copied := list.DeepCopyObject()
		testkit.Equal(t, "the copy differs", list, copied)
		seen := 0
		shared(t, reflect.ValueOf(list), reflect.ValueOf(copied), reflect.TypeOf(list).String(), &seen)
		testkit.Check(t, seen >= 8, "only %d pointers, maps and slices were compared", seen)
	}
	var noClaim *karpenter.NodeClaim
	var noPool *karpenter.NodePool
	testkit.Check(t, noClaim.DeepCopy() == nil && noPool.DeepCopy() == nil, "a copy of nothing is something")
}

// shared reports memory that two equal values share.
func shared(t *testing.T, a, b reflect.Value, path string, seen *int) {
	t.Helper()
	switch a.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice:
		if a.IsNil() || a.Kind() == reflect.Slice && a.Cap() == 0 {
			return
		}
		*seen++
		if a.Pointer() == b.Pointer() {
			t.Errorf("%s is shared", path)
			return
		}
	}
	switch a.Kind() {
	case reflect.Pointer:
		if a.Type().Elem() != reflect.TypeFor[metav1.Time]() {
			shared(t, a.Elem(), b.Elem(), path, seen)
		}
	case reflect.Slice:
		for i := range a.Len() {
			shared(t, a.Index(i), b.Index(i), path+"[]", seen)
		}
	case reflect.Struct:
		if a.Type() == reflect.TypeFor[metav1.Time]() {
			return
		}
		for i := range a.NumField() {
			shared(t, a.Field(i), b.Field(i), path+"."+a.Type().Field(i).Name, seen)
		}
	}
}
