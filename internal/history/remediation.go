package history

import (
	"reflect"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// The names in the contract with remediators. They are repeated here on purpose.
const (
	checkKind       = "NodeHealthCheck"
	checkGroup      = "remediation.medik8s.io"
	checkAPIVersion = checkGroup + "/v1alpha1"

	policyKind       = "RepairPolicy"
	policyAPIVersion = "autohealer.resourcestack.com/v1alpha1"

	nodeNameAnnotation     = "remediation.medik8s.io/node-name"
	templateNameAnnotation = "remediation.medik8s.io/template-name"
	timedOutAnnotation     = "remediation.medik8s.io/nhc-timed-out"
	healthyAnnotation      = "remediation.medik8s.io/healthy-delay"
	severalAnnotation      = "remediation.medik8s.io/multiple-templates-support"
	nodeUIDAnnotation      = "autohealer.resourcestack.com/node-uid"
	confirmedAnnotation    = "remediation.medik8s.io/manually-confirmed-healthy"

	partOfLabel           = "app.kubernetes.io/part-of"
	partOf                = "node-healthcheck-controller"
	treatedAsControlPlane = "remediation.medik8s.io/isControlPlaneNode"

	leaseNamespace   = "medik8s-leases"
	leasePrefix      = "node-"
	holderPrefix     = checkKind + "-"
	peerLease        = "e1f13584.medik8s.io"
	peerLeaseLasts   = 15 * time.Second
	farthestAhead    = 5 * time.Minute // the maximal clock skew of a holder
	chosenNameSuffix = 5
)

// remediation is a remediation object.
type remediationObject struct {
	object          *unstructured.Unstructured
	uid             types.UID
	kind            schema.GroupKind
	namespace, name string

	check    string // its owner, empty if none
	policy   string // the RepairPolicy that owns it, empty if none
	checkUID types.UID
	node     string
	nodeUID  types.UID // empty if the object does not name it
	template string    // empty if the object does not name it

	created      time.Time // by the API server's clock, whole seconds
	controlPlane bool
	deleting     bool

	succeeded, failed, deletesNode bool
	timedOut                       bool

	// The object does not show whether we created it, and when that was seen.
	ours bool
	seen time.Time
	// The object does not show since when it asks for the removal of the node.
	deletesNodeSince time.Time
}

func readRemediation(object *unstructured.Unstructured) *remediationObject {
	annotations := object.GetAnnotations()
	o := &remediationObject{
		object: object, uid: object.GetUID(), kind: object.GroupVersionKind().GroupKind(),
		namespace: object.GetNamespace(), name: object.GetName(),
		node: annotations[nodeNameAnnotation], nodeUID: types.UID(annotations[nodeUIDAnnotation]), template: annotations[templateNameAnnotation],
		created: object.GetCreationTimestamp().Time, deleting: object.GetDeletionTimestamp() != nil,
	}
	if o.node == "" {
		o.node = o.name
	}
	_, o.timedOut = annotations[timedOutAnnotation]
	_, o.controlPlane = object.GetLabels()[treatedAsControlPlane]
	for _, row := range rows(object, "metadata", "ownerReferences") {
		if text(row, "apiVersion") == policyAPIVersion && text(row, "kind") == policyKind {
			o.policy, o.checkUID = text(row, "name"), types.UID(text(row, "uid"))
		}
		if group, _, _ := strings.Cut(text(row, "apiVersion"), "/"); text(row, "kind") == checkKind && group == checkGroup {
			o.check, o.checkUID = text(row, "name"), types.UID(text(row, "uid"))
			break
		}
	}
	for _, row := range rows(object, "status", "conditions") {
		switch status := text(row, "status"); text(row, "type") {
		case "Succeeded":
			o.succeeded, o.failed = status == "True", status == "False"
		case "PermanentNodeDeletionExpected":
			o.deletesNode = status == "True"
		}
	}
	return o
}

func (o *remediationObject) String() string { return o.kind.Kind + " " + o.namespace + "/" + o.name }

// isOf reports whether the object is for this node, and not for an earlier node with the
// same name.
func (o *remediationObject) isOf(n *node) bool {
	switch {
	case o.node != n.name:
		return false
	case o.nodeUID != "":
		return o.nodeUID == n.uid
	}
	return !o.created.Before(n.object.GetCreationTimestamp().Truncate(time.Second))
}

// bodyOf returns the spec that a template has for an object: spec.template.spec, or all of
// spec.template.
func bodyOf(template *unstructured.Unstructured) (body map[string]any, ok bool) {
	whole, ok, _ := unstructured.NestedMap(template.Object, "spec", "template")
	if !ok {
		return nil, false
	}
	inner, given := whole["spec"]
	if !given {
		return whole, true
	}
	if inner == nil {
		return map[string]any{}, true
	}
	body, ok = inner.(map[string]any)
	return body, ok
}

// sameBody reports whether the object has this spec. An empty spec may be missing.
func (o *remediationObject) sameBody(body map[string]any) bool {
	spec, _ := o.object.Object["spec"].(map[string]any)
	return len(spec)+len(body) == 0 || reflect.DeepEqual(spec, body)
}

// lease is a Lease of any holder.
type leaseState struct {
	object  *unstructured.Unstructured
	holder  string
	renewed time.Time
	lasts   time.Duration
}

func readLease(object *unstructured.Unstructured) leaseState {
	l := leaseState{object: object}
	l.holder, _, _ = unstructured.NestedString(object.Object, "spec", "holderIdentity")
	renewed, _, _ := unstructured.NestedString(object.Object, "spec", "renewTime")
	l.renewed = moment(renewed)
	seconds, _, _ := unstructured.NestedInt64(object.Object, "spec", "leaseDurationSeconds")
	l.lasts = time.Duration(seconds) * time.Second
	return l
}

// held reports whether the Lease has a holder at this time.
func (l leaseState) held(at time.Time) bool {
	return l.object != nil && !l.renewed.IsZero() && l.lasts > 0 && !l.renewed.After(at.Add(farthestAhead)) && !l.renewed.Add(l.lasts).Before(at)
}

// ofCheck reports whether a health check holds or held the Lease.
func (l leaseState) ofCheck() bool {
	return l.object != nil && strings.HasPrefix(l.holder, holderPrefix)
}
