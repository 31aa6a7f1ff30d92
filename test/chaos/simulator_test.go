package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/nodepause"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/testbed"
)

const (
	groupLabel     = "example.com/group"
	leaseNamespace = "medik8s-leases"
	// step is the pause between two steps of the simulator.
	step = 50 * time.Millisecond
	// lookEvery is how often remediators and Karpenter look at their objects.
	lookEvery = 500 * time.Millisecond
	// skewedNodes is how many nodes in a hundred have a wrong clock, by up to maxSkew seconds.
	skewedNodes = 20
)

// problem is a condition that nodes get at random.
type problem struct {
	condition string
	groups    []string // empty for all
	percent   int      // of these nodes at a time
}

var problems = []problem{
	{"KernelDeadlock", nil, 16},
	{"RuntimeDown", nil, 6},
	{"SlowDisk", nil, 12},
	{"Unhealthy", []string{"static", "control-plane"}, 25},
	{"BadDisk", []string{"blue", "green", "plain"}, 20},
}

// machine is a node and the machine that runs it.
type machine struct {
	name, group, zone string
	skew              time.Duration        // of its clock
	failing           map[string]time.Time // conditions, and until when they last
	claim             string               // of a machine of Karpenter
	readyAt           time.Time            // when a new machine becomes ready; zero if it is, or never will be
	never             bool                 // it never becomes ready
	cordonedUntil     time.Time
}

// simulator makes nodes fail and recover, and acts as the remediators, as Karpenter and as a
// user. Its only memory is what it wrote: reload reads it from a restored etcd.
type simulator struct {
	cluster *install.Fixture
	api     client.Client
	random  *rand.Rand

	mu       sync.Mutex // held during a step, and while the API server is down
	machines map[string]*machine
	plans    map[types.UID]plan // of remediation objects and claims
	made     int                // nodes so far
	calm     bool               // nothing fails any more
	looked   time.Time
	err      error

	failed, recovered, replaced    atomic.Int64
	remediations, answered, claims atomic.Int64 // remediation objects seen and answered, deleted claims seen
}

// plan is what happens to a remediation object or a claim, and when.
type plan struct {
	at     time.Time
	answer answer
}

type answer int

const (
	heal    answer = iota // the node recovers
	fail                  // the remediator gives up
	replace               // the remediator replaces the node
)

func newSimulator(f *install.Fixture, random *rand.Rand) *simulator {
	return &simulator{cluster: f, api: f.API, random: random, machines: map[string]*machine{}, plans: map[types.UID]plan{}}
}

func (s *simulator) String() string {
	return fmt.Sprintf("%d conditions failed and %d recovered, %d remediations, %d terminations, %d nodes replaced",
		s.failed.Load(), s.recovered.Load(), s.remediations.Load(), s.claims.Load(), s.replaced.Load())
}

// failure returns why the simulator stopped.
func (s *simulator) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// run simulates until ctx ends.
func (s *simulator) run(ctx context.Context) {
	tick := time.NewTicker(step)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		err := s.step(ctx)
		if s.err == nil && err != nil && ctx.Err() == nil {
			s.err = fmt.Errorf("simulating nodes: %w", err)
		}
		failed := s.err != nil
		s.mu.Unlock()
		if failed {
			return
		}
	}
}

// during runs a function while the simulator writes nothing: otherwise the audit log would not
// name the authors of its writes.
func (s *simulator) during(do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return do()
}

// ---- machines

// createNodes creates the first nodes, which are ready.
func (s *simulator) createNodes(ctx context.Context, count int) error {
	groups := []string{"blue", "static", "green", "blue", "static", "plain", "blue", "static", "blue", "green"}
	for i := range count {
		group := groups[i%len(groups)]
		if group == "static" && i < 8 {
			group = "control-plane" // three of them
		}
		if err := s.create(ctx, group, s.zone(i), 0, false); err != nil {
			return err
		}
	}
	return nil
}

func (s *simulator) zone(i int) string { return "zone-" + string(rune('a'+i%3)) }

func isPool(group string) bool { return group == "blue" || group == "green" }

// create creates a machine, which becomes ready after a while, or never.
func (s *simulator) create(ctx context.Context, group, zone string, startup time.Duration, never bool) error {
	s.made++
	m := &machine{name: fmt.Sprintf("%s-%05d", group, s.made), group: group, zone: zone, failing: map[string]time.Time{}, never: never}
	if s.random.IntN(100) < skewedNodes {
		m.skew = time.Duration(s.random.IntN(2*maxSkew+1)-maxSkew) * time.Second
	}
	if startup > 0 {
		m.readyAt = time.Now().Add(startup)
	}
	isReady := startup == 0 && !never
	if isPool(group) {
		m.claim = "claim-" + m.name
		if err := s.createClaim(ctx, m); err != nil {
			return err
		}
	}
	status := corev1.ConditionTrue
	if !isReady {
		status = corev1.ConditionFalse
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: m.name, Labels: map[string]string{groupLabel: group, corev1.LabelTopologyZone: zone}},
		Spec:       corev1.NodeSpec{ProviderID: m.providerID()},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{m.condition("Ready", status)}},
	}
	for _, p := range problems { // a set is held until nodes report its conditions
		node.Status.Conditions = append(node.Status.Conditions, m.condition(p.condition, corev1.ConditionFalse))
	}
	if group == "control-plane" {
		node.Labels["node-role.kubernetes.io/control-plane"] = ""
	}
	if isPool(group) {
		node.Labels[testbed.PoolLabel] = group
	}
	if err := s.api.Create(ctx, node, client.FieldOwner("simulator")); err != nil {
		return err
	}
	s.machines[m.name] = m
	if isReady {
		return s.initialize(ctx, m)
	}
	return nil
}

func (m *machine) providerID() string { return "chaos:///" + m.zone + "/" + m.name }

// createClaim creates the NodeClaim of a machine.
func (s *simulator) createClaim(ctx context.Context, m *machine) error {
	claim := &unstructured.Unstructured{}
	text := fmt.Sprintf(`{"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
		"metadata": {"name": %q, "labels": {"karpenter.sh/nodepool": %q}, "finalizers": ["karpenter.sh/termination"]},
		"spec": {"nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}, "requirements": []}}`, m.claim, m.group)
	if err := json.Unmarshal([]byte(text), &claim.Object); err != nil {
		return err
	}
	if err := s.api.Create(ctx, claim, client.FieldOwner("simulator")); err != nil {
		return err
	}
	return s.patchStatus(ctx, claim, map[string]any{"providerID": m.providerID(), "nodeName": m.name})
}

// initialize tells that a machine of Karpenter is ready for work.
func (s *simulator) initialize(ctx context.Context, m *machine) error {
	if m.claim == "" {
		return nil
	}
	now := metav1.Now()
	err := s.patchStatus(ctx, newClaim(m.claim), map[string]any{"conditions": []metav1.Condition{
		{Type: "Initialized", Status: metav1.ConditionTrue, Reason: "Initialized", LastTransitionTime: now},
		{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: now},
	}})
	if err != nil {
		return err
	}
	return s.patchNode(ctx, m.name, `{"metadata":{"labels":{"karpenter.sh/initialized":"true"}}}`)
}

func newClaim(name string) *unstructured.Unstructured {
	claim := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim"}}
	claim.SetName(name)
	return claim
}

func (s *simulator) patchStatus(ctx context.Context, object client.Object, status any) error {
	text, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	return s.api.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, text), client.FieldOwner("simulator"))
}

func (s *simulator) patchNode(ctx context.Context, name, patch string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return s.api.Patch(ctx, node, client.RawPatch(types.MergePatchType, []byte(patch)), client.FieldOwner("simulator"))
}

// condition returns a condition with the time of the machine's clock.
func (m *machine) condition(kind string, status corev1.ConditionStatus) corev1.NodeCondition {
	now := metav1.NewTime(time.Now().Add(m.skew))
	return corev1.NodeCondition{
		Type: corev1.NodeConditionType(kind), Status: status, Reason: "Simulated", Message: "at " + time.Now().Format(time.RFC3339Nano),
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
}

func (s *simulator) set(ctx context.Context, m *machine, kind string, status corev1.ConditionStatus) error {
	return s.cluster.SetCondition(ctx, m.name, m.condition(kind, status))
}

// reload reads the machines from a restored etcd.
func (s *simulator) reload(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := s.api.List(ctx, &nodes); err != nil {
		return err
	}
	s.machines, s.plans = map[string]*machine{}, map[types.UID]plan{}
	for _, node := range nodes.Items {
		m := &machine{name: node.Name, group: node.Labels[groupLabel], zone: node.Labels[corev1.LabelTopologyZone], failing: map[string]time.Time{}}
		if isPool(m.group) {
			m.claim = "claim-" + m.name
		}
		for _, c := range node.Status.Conditions {
			switch {
			case c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue:
				m.readyAt = time.Now().Add(time.Second)
			case c.Type != corev1.NodeReady && c.Status != corev1.ConditionFalse:
				m.failing[string(c.Type)] = s.later(1, 20)
			}
		}
		if node.Spec.Unschedulable {
			m.cordonedUntil = s.later(1, 20)
		}
		s.machines[m.name] = m
	}
	return s.replaceMissing(ctx)
}

// replaceMissing creates machines for claims that were restored after their node was deleted, or
// before it was created.
func (s *simulator) replaceMissing(ctx context.Context) error {
	claims, err := s.listClaims(ctx)
	if err != nil {
		return err
	}
	for _, claim := range claims {
		name, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName")
		if s.machines[name] == nil && claim.GetDeletionTimestamp() == nil {
			if err := client.IgnoreNotFound(s.api.Delete(ctx, &claim)); err != nil {
				return err
			}
		}
	}
	return nil
}

// later returns a random time between these numbers of seconds from now.
func (s *simulator) later(least, most int) time.Time {
	return time.Now().Add(time.Duration(least)*time.Second + time.Duration(s.random.Int64N(int64(most-least)*int64(time.Second))))
}

// ---- steps

// step makes some nodes fail, and lets everything happen that is due.
func (s *simulator) step(ctx context.Context) error {
	if !s.calm {
		if err := s.failSome(ctx); err != nil {
			return err
		}
	}
	now := time.Now()
	for _, name := range slices.Sorted(maps.Keys(s.machines)) {
		if err := s.advance(ctx, s.machines[name], now); err != nil {
			return err
		}
	}
	if now.Sub(s.looked) < lookEvery {
		return nil
	}
	s.looked = now
	return errors.Join(s.remediate(ctx), s.terminate(ctx), s.collectLeases(ctx))
}

// failZone makes most nodes of a zone fail at once, for longer than the judge's lag.
func (s *simulator) failZone(ctx context.Context) error {
	return s.during(func() error {
		zone := s.zone(s.random.IntN(3))
		for _, name := range slices.Sorted(maps.Keys(s.machines)) {
			m := s.machines[name]
			if m.zone != zone || m.never || !m.readyAt.IsZero() || s.random.IntN(10) == 0 {
				continue
			}
			if err := s.set(ctx, m, "KernelDeadlock", corev1.ConditionTrue); err != nil {
				return err
			}
			m.failing["KernelDeadlock"] = s.later(20, 30)
			s.failed.Add(1)
		}
		return nil
	})
}

// failSome makes a node fail for each problem of which there are too few, and sometimes a user
// cordons or pauses a node.
func (s *simulator) failSome(ctx context.Context) error {
	names := slices.Sorted(maps.Keys(s.machines))
	for _, p := range problems {
		var well []*machine
		ill, all := 0, 0
		for _, name := range names {
			m := s.machines[name]
			if len(p.groups) > 0 && !slices.Contains(p.groups, m.group) {
				continue
			}
			all++
			if _, is := m.failing[p.condition]; is {
				ill++
			} else if m.readyAt.IsZero() && !m.never {
				well = append(well, m)
			}
		}
		if ill*100 >= all*p.percent || len(well) == 0 || s.random.IntN(2) == 0 {
			continue
		}
		m, status := well[s.random.IntN(len(well))], corev1.ConditionTrue
		if s.random.IntN(12) == 0 {
			status = corev1.ConditionUnknown
		}
		if err := s.set(ctx, m, p.condition, status); err != nil {
			return err
		}
		m.failing[p.condition] = s.later(3, 25)
		s.failed.Add(1)
	}
	if m := s.machines[names[s.random.IntN(len(names))]]; s.random.IntN(60) == 0 && m.cordonedUntil.IsZero() {
		m.cordonedUntil = s.later(5, 30)
		if err := s.patchNode(ctx, m.name, `{"spec":{"unschedulable":true}}`); err != nil {
			return err
		}
	}
	if s.random.IntN(150) > 0 {
		return nil
	}
	// The controller removes the annotation when its time has passed.
	until := s.later(20, 60).UTC().Format(time.RFC3339)
	return s.patchNode(ctx, names[s.random.IntN(len(names))], fmt.Sprintf(`{"metadata":{"annotations":{%q:"until=%s by=chaos"}}}`, nodepause.Annotation, until))
}

// advance lets a machine recover, become ready or be uncordoned when it is due.
func (s *simulator) advance(ctx context.Context, m *machine, now time.Time) error {
	for _, kind := range slices.Sorted(maps.Keys(m.failing)) {
		if !s.calm && now.Before(m.failing[kind]) {
			continue
		}
		if err := s.recover(ctx, m, kind); err != nil {
			return err
		}
	}
	if s.calm && m.never {
		m.never, m.readyAt = false, now
	}
	if !m.readyAt.IsZero() && now.After(m.readyAt) {
		m.readyAt = time.Time{}
		if err := s.set(ctx, m, "Ready", corev1.ConditionTrue); err != nil {
			return err
		}
		if err := s.initialize(ctx, m); err != nil {
			return err
		}
	}
	if !m.cordonedUntil.IsZero() && (s.calm || now.After(m.cordonedUntil)) {
		m.cordonedUntil = time.Time{}
		return s.patchNode(ctx, m.name, `{"spec":{"unschedulable":null}}`)
	}
	return nil
}

func (s *simulator) recover(ctx context.Context, m *machine, kind string) error {
	delete(m.failing, kind)
	s.recovered.Add(1)
	return s.set(ctx, m, kind, corev1.ConditionFalse)
}

// planFor returns what happens to an object, and whether it is due.
func (s *simulator) planFor(uid types.UID, seen *atomic.Int64, choose func() answer) (p plan, due bool) {
	p, known := s.plans[uid]
	if !known {
		seen.Add(1)
		p = plan{s.later(1, 8), choose()}
		s.plans[uid] = p
	}
	return p, s.calm || time.Now().After(p.at)
}

// remediate acts as the remediators.
func (s *simulator) remediate(ctx context.Context) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(remediator.Kind)
	if err := s.api.List(ctx, list); err != nil {
		return err
	}
	for i := range list.Items {
		o := &list.Items[i]
		strategy, _, _ := unstructured.NestedString(o.Object, "spec", "strategy")
		p, due := s.planFor(o.GetUID(), &s.remediations, func() answer {
			switch strategy {
			case "replace":
				return replace
			case "reboot":
				return []answer{heal, heal, fail}[s.random.IntN(3)]
			}
			return heal
		})
		_, isDone, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		if !due || o.GetDeletionTimestamp() != nil || isDone && p.answer != replace {
			continue
		}
		if err := s.answer(ctx, o, p); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

// answer does what a remediator does.
func (s *simulator) answer(ctx context.Context, o *unstructured.Unstructured, p plan) error {
	m := s.machines[o.GetAnnotations()["remediation.medik8s.io/node-name"]]
	report := func(conditions ...string) error {
		now, rows := time.Now().UTC().Format(time.RFC3339), []any{}
		for i := 0; i < len(conditions); i += 2 {
			rows = append(rows, map[string]any{"type": conditions[i], "status": conditions[i+1], "reason": "Simulated", "message": "", "lastTransitionTime": now})
		}
		return s.patchStatus(ctx, o, map[string]any{"conditions": rows})
	}
	switch {
	case m == nil: // it was replaced, and the object ends
		return report("PermanentNodeDeletionExpected", "True", "Succeeded", "True")
	case p.answer == fail:
		s.answered.Add(1)
		return report("Succeeded", "False")
	case p.answer == heal:
		s.answered.Add(1)
		for _, kind := range []string{"Unhealthy", "BadDisk"} {
			if _, is := m.failing[kind]; is {
				if err := s.recover(ctx, m, kind); err != nil {
					return err
				}
			}
		}
		return report("Succeeded", "True")
	}
	if rows, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions"); len(rows) == 0 {
		s.answered.Add(1)
		s.plans[o.GetUID()] = plan{s.later(1, 5), replace}
		return report("PermanentNodeDeletionExpected", "True")
	}
	return s.replace(ctx, m)
}

// replace deletes a node, and creates another one.
func (s *simulator) replace(ctx context.Context, m *machine) error {
	if err := client.IgnoreNotFound(s.api.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}})); err != nil {
		return err
	}
	delete(s.machines, m.name)
	s.replaced.Add(1)
	startup := time.Until(s.later(1, 8))
	return s.create(ctx, m.group, m.zone, startup, isPool(m.group) && !s.calm && s.random.IntN(10) == 0)
}

// collectLeases acts as the garbage collector for the Leases of deleted nodes.
func (s *simulator) collectLeases(ctx context.Context) error {
	var leases coordinationv1.LeaseList
	if err := s.api.List(ctx, &leases, client.InNamespace(leaseNamespace)); err != nil {
		return err
	}
	for i := range leases.Items {
		if s.machines[strings.TrimPrefix(leases.Items[i].Name, "node-")] == nil {
			if err := client.IgnoreNotFound(s.api.Delete(ctx, &leases.Items[i])); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *simulator) listClaims(ctx context.Context) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(newClaim("").GroupVersionKind())
	err := s.api.List(ctx, list)
	return list.Items, err
}

// terminate acts as Karpenter: it replaces machines whose claim is deleted.
func (s *simulator) terminate(ctx context.Context) error {
	claims, err := s.listClaims(ctx)
	if err != nil {
		return err
	}
	for i := range claims {
		claim := &claims[i]
		if claim.GetDeletionTimestamp() == nil {
			continue
		}
		if _, due := s.planFor(claim.GetUID(), &s.claims, func() answer { return replace }); !due {
			continue
		}
		name, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName")
		if m := s.machines[name]; m != nil {
			if err := s.replace(ctx, m); err != nil {
				return err
			}
		}
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		if err := client.IgnoreNotFound(s.api.Patch(ctx, claim, patch, client.FieldOwner("simulator"))); err != nil {
			return err
		}
	}
	return nil
}

// isClean returns why the cluster is not as if nothing had ever failed.
func (s *simulator) isClean(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := s.api.List(ctx, &nodes); err != nil {
		return err
	}
	for _, node := range nodes.Items {
		if len(node.Spec.Taints) > 0 || node.Spec.Unschedulable {
			return fmt.Errorf("%s is cordoned, or has the taints %v", node.Name, node.Spec.Taints)
		}
		if pause, is := node.Annotations[nodepause.Annotation]; is {
			return fmt.Errorf("%s is paused: %s", node.Name, pause)
		}
		for _, c := range node.Status.Conditions {
			if (c.Status == corev1.ConditionTrue) != (c.Type == corev1.NodeReady) {
				return fmt.Errorf("%s has %s=%s", node.Name, c.Type, c.Status)
			}
		}
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(remediator.Kind)
	if err := s.api.List(ctx, list); err != nil || len(list.Items) > 0 {
		return fmt.Errorf("there are %d remediation objects: %w", len(list.Items), err)
	}
	var leases coordinationv1.LeaseList
	if err := s.api.List(ctx, &leases, client.InNamespace(leaseNamespace)); err != nil || len(leases.Items) > 0 {
		return fmt.Errorf("there are %d Leases of nodes: %w", len(leases.Items), err)
	}
	claims, err := s.listClaims(ctx)
	if err != nil {
		return err
	}
	for _, claim := range claims {
		if claim.GetDeletionTimestamp() != nil || len(claim.GetAnnotations()) > 0 {
			return fmt.Errorf("%s is being deleted, or has the annotations %v", claim.GetName(), claim.GetAnnotations())
		}
	}
	return s.isHealthyToChecks(ctx)
}

// isHealthyToChecks returns which health check still counts a node as not healthy: the creation of a
// remediation that a killed leader sent may arrive for two minutes.
func (s *simulator) isHealthyToChecks(ctx context.Context) error {
	checks := &unstructured.UnstructuredList{}
	checks.SetAPIVersion(remediation.CheckAPIVersion)
	checks.SetKind(remediation.CheckKind)
	if err := s.api.List(ctx, checks); err != nil {
		return err
	}
	for _, check := range checks.Items {
		observed, _, _ := unstructured.NestedInt64(check.Object, "status", "observedNodes")
		if healthy, _, _ := unstructured.NestedInt64(check.Object, "status", "healthyNodes"); healthy != observed {
			return fmt.Errorf("to %s %d of %d nodes are healthy", check.GetName(), healthy, observed)
		}
	}
	return nil
}
