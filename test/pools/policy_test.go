package pools

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testbed/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// policy creates a RepairPolicy that tolerates BadDisk for this duration.
func (p *pool) policy(name, toleration string, changes ...func(*v1alpha1.RepairPolicySpec)) {
	p.t.Helper()
	is := &v1alpha1.RepairPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.RepairPolicySpec{
			NodePool: p.name,
			Repair: v1alpha1.RepairSpec{
				UnhealthyThreshold: new(intstr.FromString("100%")),
				Policies:           []v1alpha1.ConditionRepair{{ConditionType: "BadDisk", ConditionStatus: "True", Toleration: toleration}},
			},
		},
	}
	for _, change := range changes {
		change(&is.Spec)
	}
	testkit.Must(p.t, p.api.Create(p.t.Context(), is))
	p.t.Cleanup(func() { _ = p.api.Delete(context.WithoutCancel(p.t.Context()), is) })
}

// selecting has a policy select nodes by a label instead of naming a pool.
func selecting(key, value string) func(*v1alpha1.RepairPolicySpec) {
	return func(s *v1alpha1.RepairPolicySpec) {
		s.NodePool, s.Selector = "", &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
}

// hasStatus waits until the status of a policy is correct.
func (p *pool) hasStatus(name string, checks ...func(v1alpha1.RepairPolicyStatus) error) v1alpha1.RepairPolicyStatus {
	p.t.Helper()
	is := &v1alpha1.RepairPolicy{}
	p.eventually("status of "+name, func(ctx context.Context) error {
		if err := p.api.Get(ctx, client.ObjectKey{Name: name}, is); err != nil {
			return err
		}
		if is.Status.ObservedGeneration != is.Generation {
			return fmt.Errorf("the status is for generation %d, want %d", is.Status.ObservedGeneration, is.Generation)
		}
		for _, check := range checks {
			if err := check(is.Status); err != nil {
				return fmt.Errorf("%w: %+v", err, is.Status)
			}
		}
		return nil
	})
	return is.Status
}

func counted(nodes, unhealthy, repairing, held int32) func(v1alpha1.RepairPolicyStatus) error {
	return func(s v1alpha1.RepairPolicyStatus) error {
		if got, want := [4]int32{s.Nodes, s.Unhealthy, s.Repairing, s.Held}, [4]int32{nodes, unhealthy, repairing, held}; got != want {
			return fmt.Errorf("the counts of all, unhealthy, repairing and held nodes are %v, want %v", got, want)
		}
		return nil
	}
}

func condition(kind string, status metav1.ConditionStatus, words ...string) func(v1alpha1.RepairPolicyStatus) error {
	return func(s v1alpha1.RepairPolicyStatus) error {
		c := meta.FindStatusCondition(s.Conditions, kind)
		if c == nil || c.Status != status {
			return fmt.Errorf("%s is not %s", kind, status)
		}
		for _, part := range words {
			if !strings.Contains(c.Reason+": "+c.Message, part) {
				return fmt.Errorf("%s does not contain %q", kind, part)
			}
		}
		return nil
	}
}

// row checks that the status names an unhealthy node, and its eligible time: the toleration
// after the condition's timestamp, or after the controller last saw the node healthy, which
// is later on a busy machine. It stores the eligible time.
func row(node, reason string, eligible *time.Time) func(v1alpha1.RepairPolicyStatus) error {
	earliest := *eligible
	return func(s v1alpha1.RepairPolicyStatus) error {
		at := slices.IndexFunc(s.UnhealthyNodes, func(n v1alpha1.UnhealthyNode) bool { return n.Name == node })
		switch {
		case at < 0:
			return errors.New(node + " is not in the status")
		case s.UnhealthyNodes[at].Reason != reason:
			return fmt.Errorf("%s is not %s", node, reason)
		case s.UnhealthyNodes[at].EligibleAt == nil:
			return fmt.Errorf("%s has no eligible time", node)
		}
		*eligible = s.UnhealthyNodes[at].EligibleAt.Time
		if late := eligible.Sub(earliest); late < 0 || late > slow {
			return fmt.Errorf("%s is eligible at %s, want %s", node, eligible, earliest)
		}
		return nil
	}
}

// testPolicy has a pool without a block, and several policies.
func testPolicy(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	p := w.createFilledPool(t, karpenter.Pool{Name: "named"}, 4)
	names := p.names()
	p.policy("named", "1h")
	p.hasStatus("named", counted(4, 0, 0, 0), condition(v1alpha1.Accepted, metav1.ConditionTrue, "Followed"), condition(v1alpha1.Conflict, metav1.ConditionFalse))
	p.policy("named-too", "1s")
	p.hasStatus("named-too", counted(0, 0, 0, 0), condition(v1alpha1.Conflict, metav1.ConditionTrue, "RepairPolicy named", "older"),
		condition(v1alpha1.Ready, metav1.ConditionFalse, "RepairPolicy named"))
	p.policy("named-selected", "1s", selecting(testbed.PoolLabel, p.name))
	p.hasStatus("named-selected", counted(0, 0, 0, 0), condition(v1alpha1.Conflict, metav1.ConditionTrue, "for 4 of its nodes", "RepairPolicy/named"),
		condition(v1alpha1.Accepted, metav1.ConditionFalse, "Shadowed"))

	p.makeUnhealthy(names[0], names[1])
	since := p.since(names[0], "BadDisk")
	due := since.Add(time.Hour)
	p.hasStatus("named", counted(4, 2, 0, 0), row(names[0], "Pending", &due))
	table, err := p.Kubectl(t.Context(), "get", "repairpolicies", "-o", "wide")
	testkit.Must(p.t, err)
	t.Log("\n" + table)
	p.isInTable(table, "NAME POOL MODE NODES UNHEALTHY REPAIRING HELD ACCEPTED REASON CONFLICT NEXT AGE", "named named Enforce 4 2 0 0 True 2 nodes unhealthy, the first due "+due.UTC().Format(time.TimeOnly)+" False "+due.UTC().Format(time.RFC3339))
	p.edit("named", `{"spec":{"repair":{"policies":[{"conditionType":"BadDisk","conditionStatus":"True","toleration":"2s"}]}}}`)
	p.hasStatus("named", func(s v1alpha1.RepairPolicyStatus) error { // the replacement adds a node to the count
		if s.Repairing != 1 || s.Held != 1 {
			return errors.New("want one node in repair, and one held")
		}
		return nil
	})
	a := p.repaired(names[0], names[1])
	a.atMost(t, 1)
	a.of(names[0]).notBefore(t, since.Add(2*time.Second))
	if rule := a.of(names[0]).rule; rule != "Repair/RepairPolicy/named" {
		t.Errorf("it was repaired by %s", rule)
	}
	p.hasStatus("named", counted(4, 0, 0, 0))

	// The block on the pool takes precedence. Without it the policy applies again.
	p.patch(object{"repair": repair("1h")})
	p.hasStatus("named", counted(0, 0, 0, 0), condition(v1alpha1.Conflict, metav1.ConditionTrue, "NodePool named has its own repair block"))
	testMirror(p)
	p.patch(object{"repair": nil})
	p.hasStatus("named", counted(4, 0, 0, 0), condition(v1alpha1.Conflict, metav1.ConditionFalse))
	p.hasNoMirror()
	// A policy of a user may have the name of the mirror.
	p.policy("nodepool-named", "1h")
	p.patch(object{"repair": repair("2h")})
	p.hasEvent("NodePool", p.name, "MirrorNameTaken", "a user's RepairPolicy has the name nodepool-named")
	p.hasStatus("nodepool-named", condition(v1alpha1.Conflict, metav1.ConditionTrue, "NodePool named has its own repair block"))
}

// testMirror checks the RepairPolicy that shows the block of the pool, which tolerates BadDisk for
// an hour.
func testMirror(p *pool) {
	t := p.t
	t.Helper()
	const mirror = "nodepool-named"
	p.hasEvent("NodePool", p.name, "Accepted", "spec.repair is in force")
	p.hasStatus(mirror, counted(4, 0, 0, 0), condition(v1alpha1.Accepted, metav1.ConditionTrue, "Followed"), condition(v1alpha1.Ready, metav1.ConditionTrue))
	unhealthy := p.names()[0]
	p.makeUnhealthy(unhealthy)
	due := p.since(unhealthy, "BadDisk").Add(time.Hour)
	p.hasStatus(mirror, counted(4, 1, 0, 0), row(unhealthy, "Pending", &due))
	table, err := p.Kubectl(t.Context(), "get", "repairpolicies", mirror)
	testkit.Must(t, err)
	p.isInTable(table, mirror+" named Enforce 4 1 0 0 True 1 node unhealthy, due "+due.UTC().Format(time.TimeOnly))
	_, err = p.Kubectl(t.Context(), "patch", "repairpolicy", mirror, "--type=merge", "-p", `{"spec":{"repair":{"enabled":false}}}`)
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "only the controller writes repairpolicies with the label"), "a user has changed the mirror: %v", err)
	_, err = p.Kubectl(t.Context(), "delete", "repairpolicy", mirror)
	testkit.Must(t, err)
	p.hasStatus(mirror, counted(4, 1, 0, 0)) // the controller has written it again
	p.setCondition("BadDisk", corev1.ConditionFalse, unhealthy)
	p.hasStatus(mirror, counted(4, 0, 0, 0))
	is := &v1alpha1.RepairPolicy{}
	testkit.Must(t, p.api.Get(t.Context(), client.ObjectKey{Name: mirror}, is))
	testkit.Check(t, is.Labels[v1alpha1.MirrorLabel] == "NodePool" && len(is.OwnerReferences) == 1 && is.OwnerReferences[0].Name == p.name, "its metadata are %+v", is.ObjectMeta)
}

// hasNoMirror waits until no RepairPolicy shows a block of the pool.
func (p *pool) hasNoMirror() {
	p.t.Helper()
	p.eventually("no mirror", func(ctx context.Context) error {
		if err := p.api.Get(ctx, client.ObjectKey{Name: "nodepool-" + p.name}, &v1alpha1.RepairPolicy{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
}

// edit changes a policy.
func (p *pool) edit(name, patch string) {
	p.t.Helper()
	_, err := p.Kubectl(p.t.Context(), "patch", "repairpolicy", name, "--type=merge", "-p", patch)
	testkit.Must(p.t, err)
}

// isInTable fails the test unless lines of a table begin with these cells.
func (p *pool) isInTable(table string, lines ...string) {
	p.t.Helper()
	for _, line := range lines {
		if !slices.ContainsFunc(strings.Split(table, "\n"), func(is string) bool { return strings.HasPrefix(strings.Join(strings.Fields(is), " "), line) }) {
			p.t.Errorf("no line of the table begins with %q:\n%s", line, table)
		}
	}
}

// testSelected has one policy select the nodes of two pools. Each pool has its own bound.
func testSelected(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	const label = "example.com/team"
	first := w.createPool(t, karpenter.Pool{Name: "selected-a", Labels: map[string]string{label: "red"}}, 2)
	second := w.createPool(t, karpenter.Pool{Name: "selected-b", Labels: map[string]string{label: "red"}}, 2)
	first.fills(2)
	second.fills(2)
	first.policy("selected", "1s", selecting(label, "red"))
	first.hasStatus("selected", counted(4, 0, 0, 0), condition(v1alpha1.Conflict, metav1.ConditionFalse))
	unhealthy := [2][]string{first.names(), second.names()}
	first.makeUnhealthy(append(unhealthy[0], unhealthy[1]...)...)
	for i, p := range []*pool{first, second} {
		a := p.repaired(unhealthy[i]...)
		a.atMost(t, 1)
		if rule := a.terminations[0].rule; rule != "Repair/RepairPolicy/selected/"+p.name {
			t.Errorf("it was repaired by %s", rule)
		}
	}
	first.hasStatus("selected", counted(4, 0, 0, 0))
}

// testSwitches changes whether a RepairPolicy and the block of a NodePool act while a node is
// unhealthy.
func testSwitches(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	named := w.createPool(t, karpenter.Pool{Name: "switched", Spec: object{"disruption": budgets("100%")}}, 1)
	block := w.createPool(t, karpenter.Pool{Name: "switched-block", Spec: object{"repair": repair("1s"), "disruption": budgets("100%")}}, 1)
	named.policy(named.name, "1s")
	window := fmt.Sprintf(`"windows":[{"schedule":"0 %d * * *","duration":"1h"}]`, time.Now().UTC().Add(12*time.Hour).Hour())
	annotations := func(mode, paused string) string {
		return fmt.Sprintf(`"metadata":{"annotations":{%q:%s,%q:%s}}`, v1alpha1.ModeAnnotation, mode, v1alpha1.PausedAnnotation, paused)
	}
	for _, p := range []*pool{named, block} {
		p.fills(1)
		node := p.names()[0]
		kind, policy, observe, enforce := "repairpolicy", p.name, `"spec":{"mode":"Observe"}`, `,"spec":{"mode":"Enforce"}`
		if p == block {
			kind, policy, observe, enforce = "nodepool", "nodepool-"+p.name, annotations(`"Observe"`, "null"), ""
		}
		change := func(patch string) {
			t.Helper()
			testkit.Value(p.Kubectl(t.Context(), "patch", kind, p.name, "--type=merge", "-p", "{"+patch+"}")).Must(t)
		}
		for i, is := range []struct {
			patch  string
			mode   v1alpha1.Mode
			reason string
		}{
			{observe, v1alpha1.Observe, "DryRun"},
			{annotations("null", `"a test"`) + enforce, v1alpha1.Paused, "OnHold"},
			{annotations("null", "null") + `,"spec":{"repair":{` + window + `}}`, v1alpha1.Enforce, "OutsideWindow"},
		} {
			change(is.patch)
			has := func(unhealthy ...string) {
				t.Helper()
				p.hasStatus(policy, func(s v1alpha1.RepairPolicyStatus) error {
					var found []string
					for _, n := range s.UnhealthyNodes {
						found = append(found, n.Name+" "+n.Reason)
					}
					if s.Mode != is.mode || !slices.Equal(found, unhealthy) {
						return fmt.Errorf("want mode %s and the nodes %v", is.mode, unhealthy)
					}
					return nil
				})
			}
			if i == 0 {
				has()
				p.makeUnhealthy(node)
			}
			has(node + " " + is.reason)
		}
		p.untouched(p.account(), node)
		change(`"spec":{"repair":{"policies":[{"conditionType":"BadDisk","conditionStatus":"True","toleration":"1s","urgent":true}]}}`)
		p.repaired(node)
	}
}

// testBadInput sends objects that the API server or the webhook must refuse.
func testBadInput(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	p := &pool{fixture: w, t: t, name: "bad-input"}
	testkit.Must(p.t, w.karpenter.CreatePool(t.Context(), karpenter.Pool{Name: p.name, Spec: object{"repair": repair("1h")}}))
	twice := list{tolerate("1m"), tolerate("2m")}
	for name, test := range map[string]struct {
		block object
		words string
	}{
		"a negative duration":            {repair("-1m"), "spec.repair.policies[0].toleration"},
		"a duration that does not parse": {repair("soon"), "spec.repair.policies[0].toleration"},
		"a condition twice":              {object{"policies": twice}, "spec.repair.policies"},
		"a bad default":                  {repair("1m", object{"defaultTolerationDuration": "x"}), "spec.repair.defaultTolerationDuration"},
		"a bad termination":              {repair("1m", object{"termination": "Violent"}), "spec.repair.termination"},
		"a bad grace period":             {repair("1m", object{"termination": "Graceful", "terminationGracePeriod": "-1s"}), "spec.repair.terminationGracePeriod"},
		"a bad ready timeout":            {repair("1m", object{"readyTimeout": "later"}), "spec.repair.readyTimeout"},
		"a bad bound":                    {repair("1m", object{"maxConcurrent": "many"}), "spec.repair.maxConcurrent"},
		"a bound with both of its names": {repair("1m", object{"maxConcurrent": 1, "maxUnhealthy": 1}), "want maxConcurrent alone"},
	} {
		for _, manifest := range []object{
			{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "RepairPolicy", "metadata": object{"name": "bad-input"}, "spec": object{"nodePool": p.name, "repair": test.block}},
			{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": object{"name": p.name}, "spec": object{"repair": test.block}},
		} {
			text, err := (&unstructured.Unstructured{Object: manifest}).MarshalJSON()
			testkit.Must(p.t, err)
			var out string
			if manifest["kind"] == "NodePool" {
				out, err = p.Kubectl(t.Context(), "patch", "nodepool", p.name, "--type=merge", "-p", string(text))
			} else {
				out, err = p.KubectlApply(t.Context(), string(text))
			}
			if err == nil || !strings.Contains(out+err.Error(), test.words) {
				t.Errorf("%s in a %s: want it refused with %s, got %s %v", name, manifest["kind"], test.words, out, err)
			}
		}
	}
}

// testWarnings sends objects that are accepted with a warning.
func testWarnings(t *testing.T, w *fixture, _ *install.Controller) {
	t.Helper()
	const name = "nowhere"
	var received warnings
	config := w.AdminConfig()
	config.WarningHandler = &received
	api, err := client.New(config, client.Options{Scheme: w.api.Scheme()})
	testkit.Must(t, err)
	// A webhook that cannot read the NodePools within two seconds says so instead.
	testkit.Eventually(t, "a warning for each field", func() error {
		received = nil
		if err := api.Create(t.Context(), &v1alpha1.RepairPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.RepairPolicySpec{NodePool: name, Repair: v1alpha1.RepairSpec{
				Policies: []v1alpha1.ConditionRepair{{ConditionType: "NoProviderStatesThis", Toleration: "1h"}},
			}},
		}, client.DryRunAll); err != nil {
			return err
		}
		for _, words := range []string{"spec.nodePool", "spec.repair.policies[0].conditionType"} {
			if !strings.Contains(strings.Join(received, "\n"), words) {
				return fmt.Errorf("no warning for %s: %q", words, received)
			}
		}
		return nil
	})
}

// warnings are the warnings in the API server's responses.
type warnings []string

// HandleWarningHeader adds a warning.
func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }
