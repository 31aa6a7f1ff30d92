package repair

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/nodepause"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/treatment/nodeclaim"
	"github.com/resourcestack/autohealer/internal/triage"
)

// policy creates or changes a RepairPolicy.
func (h *nodePoolFixture) policy(name string, changes ...func(*v1alpha1.RepairPolicy)) *v1alpha1.RepairPolicy {
	h.T.Helper()
	p := &v1alpha1.RepairPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("policy-" + name), CreationTimestamp: metav1.NewTime(time.Now())}}
	if before := h.repairs.policies[name]; before != nil {
		p = before.object.DeepCopy()
	}
	p.Generation++
	p.ResourceVersion = h.api.next()
	for _, change := range changes {
		change(p)
	}
	testkit.Must(h.T, h.policies.Update(p))
	h.runRound()
	return p
}

func (h *nodePoolFixture) noPolicy(name string) {
	h.T.Helper()
	testkit.Must(h.T, h.policies.Delete(h.repairs.policies[name].object))
	h.runRound()
}

func forPool(name string) func(*v1alpha1.RepairPolicy) {
	return func(p *v1alpha1.RepairPolicy) { p.Spec.NodePool, p.Spec.Selector = name, nil }
}

func selecting(key, value string) func(*v1alpha1.RepairPolicy) {
	return func(p *v1alpha1.RepairPolicy) {
		p.Spec.NodePool, p.Spec.Selector = "", &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
}

// conditionOf returns a condition of the policy's current status.
func (h *nodePoolFixture) conditionOf(policy, kind string) metav1.Condition {
	h.T.Helper()
	status := h.repairs.statusOf(h.repairs.policies[policy], &repairCounts{})
	return *meta.FindStatusCondition(status.Conditions, kind)
}

func TestPolicyPrecedence(t *testing.T) {
	for name, test := range map[string]struct {
		happens  func(h *nodePoolFixture)
		governs  string
		conflict map[string]string // messages of policies that lose
	}{
		"no policy":                        {func(*nodePoolFixture) {}, "", nil},
		"the block on the pool":            {func(h *nodePoolFixture) { h.pool("default", ofAtMost("1")) }, "NodePool/default", nil},
		"the policy that names the pool":   {func(h *nodePoolFixture) { h.policy("p", forPool("default")) }, "RepairPolicy/p", nil},
		"the policy that selects the node": {func(h *nodePoolFixture) { h.policy("p", selecting("zone", "z")) }, "RepairPolicy/p/default", nil},
		"the block before policies": {func(h *nodePoolFixture) {
			h.policy("p", forPool("default"))
			h.policy("q", selecting("zone", "z"))
			h.pool("default", ofAtMost("1"))
		}, "NodePool/default", map[string]string{"p": "NodePool default has its own repair block", "q": "NodePool/default applies to node a"}},
		"a policy that names the pool before an older selector": {func(h *nodePoolFixture) {
			h.policy("q", selecting("zone", "z"))
			enginetest.Pass(time.Minute)
			h.policy("p", forPool("default"))
		}, "RepairPolicy/p", map[string]string{"q": "RepairPolicy/p applies to node a"}},
		"the older of two that name it": {func(h *nodePoolFixture) {
			h.policy("q", forPool("default"))
			enginetest.Pass(time.Minute)
			h.policy("p", forPool("default"))
		}, "RepairPolicy/q", map[string]string{"p": "RepairPolicy q names NodePool default, too, and is older"}},
		"the first by name of two of one age": {func(h *nodePoolFixture) {
			h.policy("q", selecting("zone", "z"))
			h.policy("p", selecting("zone", "z"))
		}, "RepairPolicy/p/default", map[string]string{"q": "RepairPolicy/p/default applies"}},
		"a disabled policy": {func(h *nodePoolFixture) {
			h.policy("p", forPool("default"), func(p *v1alpha1.RepairPolicy) { p.Spec.Repair.Enabled = new(false) })
			h.policy("q", selecting("zone", "z"))
		}, "RepairPolicy/p", map[string]string{"q": "RepairPolicy/p applies"}},
		"the last valid version of an invalid policy": {func(h *nodePoolFixture) {
			h.policy("p", forPool("default"))
			h.policy("p", selecting("zone", "z"), func(p *v1alpha1.RepairPolicy) { p.Spec.Repair.DefaultTolerationDuration = "soon" })
			h.policy("q", selecting("zone", "z"))
		}, "RepairPolicy/p", map[string]string{"q": "RepairPolicy/p applies"}},
		"none if it was never valid": {func(h *nodePoolFixture) {
			h.policy("p", forPool("default"), func(p *v1alpha1.RepairPolicy) { p.Spec.Repair.DefaultTolerationDuration = "soon" })
		}, "", nil},
		"the older policy after the other was created again": {func(h *nodePoolFixture) {
			h.policy("q", forPool("default"))
			enginetest.Pass(time.Minute)
			h.policy("p", selecting("zone", "z"))
			h.policy("p", func(p *v1alpha1.RepairPolicy) { p.UID = "another" })
		}, "RepairPolicy/q", map[string]string{"p": "RepairPolicy/q applies to node a"}},
		"the next when the first is gone": {func(h *nodePoolFixture) {
			h.policy("q", forPool("default"))
			enginetest.Pass(time.Minute)
			h.policy("p", selecting("zone", "z"))
			h.noPolicy("q")
		}, "RepairPolicy/p/default", nil},
		"the policy without its pool": {func(h *nodePoolFixture) {
			h.policy("p", selecting("zone", "z"))
			h.noPool("default")
		}, "RepairPolicy/p", nil},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.T = t
				h.pool("default", nil)
				h.api.launch("a", "default", func(n *corev1.Node, _ *karpenter.NodeClaim) { n.Labels["zone"] = "z" })
				h.deliver()
				test.happens(h)
				if is := h.repairs.nodes["a"].assigned.repairedBy; is != test.governs {
					t.Errorf("policy %q applies, want %q", is, test.governs)
				}
				for name := range h.repairs.policies {
					is := h.conditionOf(name, v1alpha1.Conflict)
					message, loses := test.conflict[name]
					if (is.Status == metav1.ConditionTrue) != loses || !strings.Contains(is.Message, message) {
						t.Errorf("what policy %s says of conflicts: %s %q, want %q", name, is.Status, is.Message, message)
					}
				}
			})
		})
	}
}

// unfollowable makes a policy version invalid. Its author wanted to disable repairs.
func unfollowable(p *v1alpha1.RepairPolicy) {
	p.Spec.Repair.Enabled, p.Spec.Repair.DefaultTolerationDuration = new(false), "soon"
}

// invalidBlock makes the block of a pool invalid, without a valid version before.
func invalidBlock(p *repairblock.Pool) { p.Problem = "the block cannot be followed" }

// Defaults do not replace an invalid policy.
func TestDefaultsApplyOnlyWithoutAPolicy(t *testing.T) {
	const defaults = "NodePool/default"
	for name, test := range map[string]struct {
		happens func(h *nodePoolFixture)
		governs string
		isTimed bool
	}{
		"no policy":                 {func(*nodePoolFixture) {}, defaults, true},
		"the block is invalid":      {func(h *nodePoolFixture) { h.pool("default", nil, invalidBlock) }, "", false},
		"the block is corrected":    {func(h *nodePoolFixture) { h.pool("default", nil, invalidBlock); h.pool("default", nil) }, defaults, true},
		"a valid block before it":   {func(h *nodePoolFixture) { h.pool("default", ofAtMost("1"), invalidBlock) }, defaults, true},
		"a policy that names it":    {func(h *nodePoolFixture) { h.policy("p", forPool("default"), unfollowable) }, "", false},
		"a policy for another pool": {func(h *nodePoolFixture) { h.policy("p", forPool("other"), unfollowable) }, defaults, true},
		"a policy that selects it":  {func(h *nodePoolFixture) { h.policy("p", selecting("zone", "z"), unfollowable) }, "", false},
		"a policy that selects another": {func(h *nodePoolFixture) {
			h.policy("p", selecting("zone", "y"), unfollowable)
		}, defaults, true},
		"a policy that may mean any": {func(h *nodePoolFixture) {
			h.policy("p", func(p *v1alpha1.RepairPolicy) {
				p.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: "Near"}}}
			})
		}, "", false},
		"a corrected policy": {func(h *nodePoolFixture) {
			h.policy("p", forPool("default"), unfollowable)
			h.policy("p", func(p *v1alpha1.RepairPolicy) { p.Spec.Repair = v1alpha1.RepairSpec{} })
		}, "RepairPolicy/p", true},
		"a policy that is gone": {func(h *nodePoolFixture) {
			h.policy("p", forPool("default"), unfollowable)
			h.noPolicy("p")
		}, defaults, true},
		"a valid policy beside an invalid block": {func(h *nodePoolFixture) {
			h.pool("default", nil, invalidBlock)
			h.policy("p", forPool("default"))
		}, "RepairPolicy/p", true},
		"a valid selector beside an invalid block, with the timeout": {func(h *nodePoolFixture) {
			h.pool("default", nil, invalidBlock)
			h.policy("p", selecting("zone", "z"))
		}, "RepairPolicy/p/default", false},
		"a valid policy beside an older invalid one": {func(h *nodePoolFixture) {
			h.policy("q", forPool("default"), unfollowable)
			enginetest.Pass(time.Minute)
			h.policy("p", forPool("default"))
		}, "RepairPolicy/p", true},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.T = t
				h.pool("default", nil)
				h.api.launch("a", "default", func(n *corev1.Node, _ *karpenter.NodeClaim) { n.Labels["zone"] = "z" })
				h.deliver()
				h.breaks(corev1.ConditionTrue, "a")
				test.happens(h)
				if is := h.repairs.nodes["a"].assigned; is.repairedBy != test.governs || (is.timedBy != "") != test.isTimed {
					t.Errorf("the policies are %+v, want %q, and that it is timed is %t", is, test.governs, test.isTimed)
				}
				if h.advance(10 * time.Minute); test.governs == "" {
					h.WantNoTask("a")
					return
				}
				h.WantTask("a", nodeclaim.TerminateClaim)
			}, timed, func(cfg *Config) { cfg.WithoutPolicy = true })
		})
	}
}

// The status of an invalid policy says what happens instead.
func TestAnInvalidPolicyReportsThatNothingIsRepaired(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.policy("p", forPool("default"), unfollowable)
		message := "until the policy is corrected, none of its nodes is repaired, unless another policy applies to it"
		if is := h.conditionOf("p", v1alpha1.Accepted); is.Status != metav1.ConditionFalse || !strings.Contains(is.Message, "defaultTolerationDuration") || !strings.Contains(is.Message, message) {
			t.Errorf("its status: %+v", is)
		}
		if is := h.Events[len(h.Events)-1]; is.EventReason != treat.NotAccepted || !strings.Contains(is.Message, message) {
			t.Errorf("its Event: %+v", is)
		}
		h.policy("p", func(p *v1alpha1.RepairPolicy) { p.Spec.Repair = v1alpha1.RepairSpec{} })
		h.policy("p", unfollowable)
		message = "the last accepted version stays in force"
		if is := h.conditionOf("p", v1alpha1.Accepted); !strings.Contains(is.Message, message) {
			t.Errorf("its status when it was right once: %+v", is)
		}
		if is := h.Events[len(h.Events)-1]; is.EventReason != treat.NotAccepted || !strings.Contains(is.Message, message) {
			t.Errorf("its Event: %+v", is)
		}
		h.policy("p", func(p *v1alpha1.RepairPolicy) { p.Spec.Repair.Enabled = new(false) })
		if isEnabled(&h.repairs.policies["p"].inForce.Spec.Repair) {
			t.Error("an invalid version that is disabled does not switch the policy off")
		}
		h.policy("p", func(p *v1alpha1.RepairPolicy) { p.Spec.Repair.Enabled = nil })
		if !isEnabled(&h.repairs.policies["p"].inForce.Spec.Repair) {
			t.Error("the policy stays switched off")
		}
		next, invalid := newNodePoolFixture(t), h.repairs.policies["p"].object.DeepCopy()
		invalid.Status = h.statusOf("p")
		testkit.Must(t, next.policies.Update(invalid))
		next.runRound()
		if is := next.conditionOf("p", v1alpha1.Accepted); !strings.Contains(is.Message, message) || next.repairs.policies["p"].inForce == nil {
			t.Errorf("its status under the next leader: %+v", is)
		}
	})
}

// The incremental assignment equals an assignment from scratch.
func TestAssignmentEqualsANaiveAssignment(t *testing.T) {
	governed := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		inBubble(t, rt, func(t *testing.T) {
			t.Helper()
			h := newNodePoolFixture(t, func(cfg *Config) { cfg.WithoutPolicy = rapid.Bool().Draw(rt, "without policy") })
			s := &history{nodePoolFixture: h, rt: rt}
			pools, names, zones := []string{"p", "q"}, []string{"x", "y", "z"}, []string{"1", "2"}
			anyOf := func(of []string) string { return rapid.SampledFrom(of).Draw(rt, "which") }
			for i := range rapid.IntRange(3, 30).Draw(rt, "acts") {
				switch rapid.SampledFrom([]string{"launch", "launch", "relabel", "pool", "block", "invalid block", "no pool", "name", "select", "bad", "drop", "again", "pass"}).Draw(rt, "act") {
				case "launch":
					h.api.launch(fmt.Sprint("n", i), anyOf(append(pools, "")), func(n *corev1.Node, _ *karpenter.NodeClaim) { n.Labels["zone"] = anyOf(zones) })
					h.deliver()
				case "relabel":
					if name := some(rt, h.api.nodes, func(*corev1.Node) bool { return true }); name != "" {
						h.api.changeNode(name, func(n *corev1.Node) { n.Labels["zone"] = anyOf(zones) })
						h.deliver()
					}
				case "pool":
					h.pool(anyOf(pools), nil)
				case "block":
					h.pool(anyOf(pools), ofAtMost("1"))
				case "invalid block":
					h.pool(anyOf(pools), nil, invalidBlock)
				case "no pool":
					h.noPool(anyOf(pools))
				case "name":
					h.policy(anyOf(names), forPool(anyOf(pools)))
				case "select":
					h.policy(anyOf(names), selecting("zone", anyOf(zones)))
				case "bad":
					h.policy(anyOf(names), func(p *v1alpha1.RepairPolicy) {
						p.Spec.Repair = *ofAtMost("900%")
						if p.Spec.NodePool == "" && p.Spec.Selector == nil {
							p.Spec.NodePool = "p"
						}
					})
				case "again":
					if name := anyOf(names); h.repairs.policies[name] != nil {
						h.policy(name, func(p *v1alpha1.RepairPolicy) {
							p.UID, p.CreationTimestamp = types.UID(fmt.Sprint("again-", i)), metav1.NewTime(time.Now())
							p.Spec.Repair = v1alpha1.RepairSpec{}
						})
					}
				case "drop":
					if name := anyOf(names); h.repairs.policies[name] != nil {
						h.noPolicy(name)
					}
				case "pass":
					enginetest.Pass(time.Minute)
				}
				for kind, n := range s.lookNaively() {
					governed[kind] += n
				}
			}
		})
	})
	t.Logf("nodes by the kind of policy that governs them: %v", governed)
	for _, kind := range []string{"", "NodePool", "RepairPolicy", "shadowed", "never valid"} {
		testkit.Check(t, governed[kind] != 0, "no node was ever governed by %q: that proves nothing", kind)
	}
}

// lookNaively assigns every node from scratch, and counts nodes by rule.
func (s *history) lookNaively() map[string]int {
	counts := map[string]int{}
	for name, state := range s.Nodes() {
		label := state.Object.Labels["karpenter.sh/nodepool"]
		pool := s.repairs.pools[label]
		type candidate struct {
			rank int
			made int64
			name string
			rule string
		}
		var all []candidate
		neverValid := pool != nil && pool.Block == nil && pool.Problem != ""
		if pool != nil && pool.Block != nil {
			all = append(all, candidate{rule: "NodePool/" + label})
		}
		for policy, pol := range s.repairs.policies {
			if pol.inForce == nil {
				spec := pol.object.Spec
				neverValid = neverValid || spec.NodePool != "" && spec.NodePool == label || spec.Selector != nil && spec.Selector.MatchLabels["zone"] == state.Object.Labels["zone"]
				continue
			}
			is := candidate{rank: 1, made: pol.object.CreationTimestamp.Unix(), name: policy, rule: "RepairPolicy/" + policy}
			if spec := pol.inForce.Spec; spec.NodePool != "" {
				if spec.NodePool != label {
					continue
				}
				if pool == nil {
					is.rule = "" // it still has precedence
				}
			} else {
				if spec.Selector.MatchLabels["zone"] != state.Object.Labels["zone"] {
					continue
				}
				is.rank = 2
				if pool != nil {
					is.rule += "/" + label
				}
			}
			all = append(all, is)
		}
		slices.SortFunc(all, func(a, b candidate) int {
			if a.rank != b.rank {
				return a.rank - b.rank
			}
			if a.made != b.made {
				return int(a.made - b.made)
			}
			return strings.Compare(a.name, b.name)
		})
		want := ""
		switch {
		case len(all) > 0:
			want = all[0].rule
		case pool != nil && s.repairs.cfg.WithoutPolicy && neverValid:
			counts["never valid"]++
		case pool != nil && s.repairs.cfg.WithoutPolicy:
			want = "NodePool/" + label
		}
		if s.repairs.nodeOf(state).assigned.repairedBy != want {
			s.fails("%s is governed by %q, want %q", name, s.repairs.nodeOf(state).assigned.repairedBy, want)
		}
		var losers []string
		for _, other := range all[min(1, len(all)):] {
			losers = append(losers, other.name)
		}
		for policy, pol := range s.repairs.policies {
			if pol.shadowed[name] != slices.Contains(losers, policy) {
				s.fails("policy %s knows of %v, and of %s it asks for %v in vain", policy, pol.shadowed, name, losers)
			}
		}
		kind, _, _ := strings.Cut(want, "/")
		counts[kind]++
		counts["shadowed"] += len(losers)
	}
	for policy, pol := range s.repairs.policies {
		for node := range pol.shadowed {
			if s.Node(node) == nil {
				s.fails("policy %s asks in vain for %s, which is gone", policy, node)
			}
		}
	}
	return counts
}

// The status describes the policy and its unhealthy nodes.
func TestTheStatusOfAPolicy(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.policy("p", forPool("default"))
		if is := h.conditionOf("p", v1alpha1.Accepted); is.Status != metav1.ConditionTrue || is.Reason != "NoSuchNodePool" {
			t.Errorf("without its pool: %+v", is)
		}
		h.pool("default", nil)
		h.policy("p", func(p *v1alpha1.RepairPolicy) { p.Spec.Repair = *ofAtMost("1") })
		h.launches("default", "a", "b", "c")
		h.breaks(corev1.ConditionTrue, "b")
		enginetest.Pass(time.Minute)
		h.breaks(corev1.ConditionTrue, "a")
		id := triage.RuleID{Kind: policykind.Repair, Name: "RepairPolicy/p"}
		status := func() v1alpha1.RepairPolicyStatus {
			counts, _ := h.Core().Population(id)
			sum := h.repairs.countRepair(h.repairs.followed[id], counts)
			return h.repairs.statusOf(h.repairs.policies["p"], sum)
		}
		tolerate := func(how string) {
			h.policy("p", func(p *v1alpha1.RepairPolicy) { p.Spec.Repair.DefaultTolerationDuration = how })
		}
		tolerate("Never")
		is := status()
		if is.Unhealthy != 0 || is.Held != 0 || len(is.UnhealthyNodes) != 0 {
			t.Errorf("tolerated: %+v", is)
		}
		tolerate("")
		is = status()
		wanted := []v1alpha1.ConditionRepair{{ConditionType: "Broken", ConditionStatus: "True", Toleration: "10m"}}
		if is.MaxRepairing == nil || *is.MaxRepairing != 1 || !slices.Equal(is.Tolerations, wanted) {
			t.Errorf("the effective values: %v, %+v", is.MaxRepairing, is.Tolerations)
		}
		if is.Nodes != 3 || is.Unhealthy != 2 || is.Repairing != 0 || is.Held != 0 || len(is.UnhealthyNodes) != 2 || is.UnhealthyNodes[0].Name != "b" ||
			is.UnhealthyNodes[0].Reason != "Pending" || !is.UnhealthyNodes[1].EligibleAt.Time.Equal(time.Now().Add(10*time.Minute).Truncate(time.Second)) {
			t.Errorf("before: %+v", is)
		}
		h.advance(10 * time.Minute)
		h.terminates("b")
		if is = status(); is.Repairing != 1 || is.Held != 1 {
			t.Errorf("in repair: %+v", is)
		}
		h.goes("b")
		if is = status(); is.Nodes != 2 || is.Repairing != 1 || is.Held != 1 || len(is.UnhealthyNodes) != 1 {
			t.Errorf("when it is gone: %+v", is)
		}
		h.policy("p", func(p *v1alpha1.RepairPolicy) { p.Spec.Repair.Enabled = new(false) })
		if is := h.conditionOf("p", v1alpha1.Accepted); is.Reason != "SwitchedOff" || h.finding(policykind.Repair, "a").Code != triage.OnHold {
			t.Errorf("switched off: %+v, and %v", is, h.finding(policykind.Repair, "a"))
		}
		h.policy("p", func(p *v1alpha1.RepairPolicy) { p.Spec.Repair.DefaultTolerationDuration = "soon" })
		if is := h.conditionOf("p", v1alpha1.Accepted); is.Status != metav1.ConditionFalse || !strings.Contains(is.Message, "spec.repair.defaultTolerationDuration") {
			t.Errorf("unreadable: %+v", is)
		}
	})
}

// The status has the effective values of fields that a policy leaves out, and the sums of its
// NodePools.
func TestTheStatusHasTheEffectiveValues(t *testing.T) {
	const byPool, byBlock, byAll = "a policy for a NodePool", "a block", "a policy for all NodePools"
	for name, test := range map[string]struct {
		nodes        map[string]int // by pool
		threshold    string
		readyTimeout string
		want         map[string]string // the threshold and the ready timeout, by kind of policy
	}{
		"the defaults of few nodes":  {map[string]int{"default": 5}, "", "", map[string]string{byPool: "3 10m", byBlock: "3 10m", byAll: "3 "}},
		"the defaults of more nodes": {map[string]int{"default": 6}, "", "", map[string]string{byPool: "2 10m", byBlock: "2 10m", byAll: "2 "}},
		"a percentage":               {map[string]int{"default": 5}, "50%", "", map[string]string{byBlock: "3 10m"}},
		"numbers":                    {map[string]int{"default": 6}, "4", "1h30m", map[string]string{byPool: "4 1h30m", byBlock: "4 1h30m"}},
		"two NodePools":              {map[string]int{"default": 5, "other": 6}, "", "", map[string]string{byPool: "3 10m", byAll: "5 "}},
		"a percentage of two":        {map[string]int{"default": 3, "other": 3}, "50%", "", map[string]string{byAll: "4 "}},
		"no nodes":                   {map[string]int{"default": 0}, "", "", map[string]string{byPool: "none 10m", byBlock: "none 10m", byAll: "none "}},
	} {
		for kind, want := range test.want {
			t.Run(name+", by "+kind, func(t *testing.T) {
				withNodePools(t, func(h *nodePoolFixture) {
					spec := v1alpha1.RepairSpec{ReadyTimeout: test.readyTimeout}
					if test.threshold != "" {
						spec.UnhealthyThreshold = new(intstr.Parse(test.threshold))
					}
					for pool, nodes := range test.nodes {
						h.pool(pool, nil)
						for i := range nodes {
							h.launches(pool, fmt.Sprint(pool, i))
						}
					}
					var is v1alpha1.RepairPolicyStatus
					switch kind {
					case byBlock:
						h.pool("default", &spec)
						is = h.mirrorOf("default")
					case byPool:
						h.policy("p", forPool("default"), func(p *v1alpha1.RepairPolicy) { p.Spec.Repair = spec })
						is = h.statusOf("p")
					default:
						h.policy("p", func(p *v1alpha1.RepairPolicy) { p.Spec.Selector, p.Spec.Repair = &metav1.LabelSelector{}, spec })
						is = h.statusOf("p")
					}
					threshold := "none"
					if is.UnhealthyThreshold != nil {
						threshold = strconv.FormatInt(int64(*is.UnhealthyThreshold), 10)
					}
					testkit.Same(t, threshold+" "+is.ReadyTimeout, want, "the threshold and the ready timeout")
				}, timed)
			})
		}
	}
}

// Every policy reports hidden blocks while they are hidden, because users may look there.
func TestPoliciesReportALostSchema(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		isLost := func(p *repairblock.Pool) { p.Lost = true }
		h.policy("p", forPool("other"))
		h.policy("q", selecting("zone", "here"))
		h.pool("first", ofAtMost("1"))
		h.pool("second", ofAtMost("1"))
		h.pool("plain", nil)
		condition := func(policy string) *metav1.Condition {
			status := h.statusOf(policy)
			h.repairs.policies[policy].status.Stored = status // as if it were written
			return meta.FindStatusCondition(status.Conditions, v1alpha1.SchemaLost)
		}
		for _, test := range []struct {
			happens func()
			names   string // of the reported pools
		}{
			{func() {}, ""},
			{func() { h.pool("second", ofAtMost("1"), isLost) }, "second"},
			{func() { h.pool("first", ofAtMost("1"), isLost) }, "first, second"},
			{func() { h.pool("second", ofAtMost("1")) }, "first"},
			{func() { h.noPool("first") }, ""},
		} {
			for _, pol := range h.repairs.policies {
				pol.status.Stale = false
			}
			test.happens()
			for _, policy := range []string{"p", "q"} {
				if is := condition(policy); (is != nil) != (test.names != "") || is != nil && (is.Status != metav1.ConditionTrue || is.Reason != "BlocksHidden" ||
					is.Message != "the CRD of NodePools has lost the schema of repair blocks; the last good blocks are in force for NodePools "+test.names) {
					t.Errorf("%s says %+v, want %q", policy, is, test.names)
				}
				if isStale := h.repairs.policies[policy].status.Stale; test.names != "" && !isStale {
					t.Errorf("the status of %s is not to be written", policy)
				}
			}
		}
	})
}

// statusOf returns the current status of a policy, and checks the metrics of its rules.
func (h *nodePoolFixture) statusOf(policy string) v1alpha1.RepairPolicyStatus {
	h.T.Helper()
	pol, sum := h.repairs.policies[policy], &repairCounts{}
	for id, r := range h.repairs.followed {
		if r.policy == pol {
			counts, _ := h.Core().Population(id)
			sum.add(h.repairs.countRepair(r, counts))
		}
	}
	return h.repairs.statusOf(pol, sum)
}

// measured returns the number of nodes of a rule's policy by state.
func (h *nodePoolFixture) measured(rule triage.RuleID) map[string]int {
	policy, states := policykind.PolicyOf(rule), map[string]int{}
	for _, m := range collect(h.T, h.PolicyMetrics()) {
		if m.labels["policy_kind"] == policy.Kind && m.labels["policy"] == policy.Name && m.labels["state"] != "" && m.value > 0 {
			states[m.labels["state"]] = int(m.value)
		}
	}
	return states
}

// Every node starts as not Ready and has time to become Ready.
func TestAStartingNodeIsHealthyUntilItsTimeout(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", nil)
		h.policy("p", forPool("default"), func(p *v1alpha1.RepairPolicy) { p.Spec.Repair = *ofAtMost("1") })
		h.launches("default", "x", "y")
		for _, name := range []string{"a", "b"} {
			h.api.launch(name, "default", unready)
		}
		h.deliver()
		says := func(when string, nodes, unhealthy, repairing, held int32, listed ...string) {
			t.Helper()
			h.advance(time.Second)
			is := h.statusOf("p")
			var names []string
			for _, row := range is.UnhealthyNodes {
				names = append(names, row.Name)
			}
			if is.Nodes != nodes || is.Unhealthy != unhealthy || is.Repairing != repairing || is.Held != held || !slices.Equal(names, listed) {
				t.Errorf("%s: %+v", when, is)
			}
			want := map[string]int{"Healthy": int(nodes-unhealthy) - 2, "Treating": int(repairing), "CapFull": int(held)}
			maps.DeleteFunc(want, func(_ string, n int) bool { return n == 0 })
			if is := h.measured(timeoutRule("default")); !maps.Equal(is, want) {
				t.Errorf("%s: the metric says %v, want %v", when, is, want)
			}
		}
		says("while they start", 4, 0, 0, 0)
		ready := meta.FindStatusCondition(h.statusOf("p").Conditions, v1alpha1.Ready)
		testkit.Same(t, ready.Message, "4 nodes, all healthy", "what the policy says of nodes that start")
		h.advance(10 * time.Minute)
		says("past their time", 4, 2, 1, 1, "a", "b")
		h.terminates("a")
		says("in repair", 4, 2, 1, 1, "a", "b")
		h.api.changeNode("b", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
		h.deliver()
		if is := h.statusOf("p"); is.Nodes != 4 || is.Unhealthy != 1 || len(is.UnhealthyNodes) != 1 {
			t.Errorf("when one is ready: %+v", is)
		}
	}, timed)
}

// The metrics show when each unhealthy node becomes eligible, while it is unhealthy.
func TestMetricsShowWhenNodesBecomeEligible(t *testing.T) {
	const blue, red, policed, timeout = "NodePool/blue", "RepairPolicy/p", "RepairPolicy/q", "ReadyTimeout/blue"
	withNodePools(t, func(h *nodePoolFixture) {
		says := func(when string, want map[string]time.Time) {
			t.Helper()
			h.advance(time.Second)
			is := map[string]time.Time{}
			for _, m := range collect(t, h.repairs.metrics.eligible) {
				is[m.labels["policy_kind"]+"/"+m.labels["policy"]+" "+m.labels["nodepool"]+" "+m.labels["node"]] = time.Unix(int64(m.value), 0)
			}
			testkit.Check(t, maps.EqualFunc(is, want, time.Time.Equal), "%s: %v, want %v", when, is, want)
		}
		h.pool("blue", ofAtMost("1"))
		h.pool("red", nil)
		h.policy("p", forPool("red"))
		h.policy("q", selecting("plain", "yes"))
		h.launches("blue", "b1", "b2", "b3")
		h.launches("red", "r1", "r2")
		h.api.storeNode(func() *corev1.Node {
			n := h.api.nodes["r1"].DeepCopy()
			n.Name, n.UID, n.Spec.ProviderID, n.Labels = "plain", "uid-of-plain", "", map[string]string{"plain": "yes"}
			return n
		}())
		h.api.launch("b4", "blue", unready)
		h.deliver()
		started := time.Now().Truncate(time.Second)
		says("while all are well", nil)

		h.breaks(corev1.ConditionTrue, "b1", "r1", "plain")
		due := time.Now().Add(10 * time.Minute).Truncate(time.Second)
		says("when some are unhealthy", map[string]time.Time{blue + " blue b1": due, red + " red r1": due, policed + "  plain": due})
		h.policy("p", func(p *v1alpha1.RepairPolicy) { p.Spec.Repair.DefaultTolerationDuration = "20m" })
		h.breaks(corev1.ConditionFalse, "plain")
		says("when one is tolerated for longer, and one is well again", map[string]time.Time{blue + " blue b1": due, red + " red r1": due.Add(10 * time.Minute)})

		h.advance(10 * time.Minute)
		late := started.Add(10 * time.Minute)
		is := map[string]time.Time{blue + " blue b1": due, timeout + " blue b4": late, red + " red r1": due.Add(10 * time.Minute)}
		says("when one has not become ready in time", is)
		h.terminates("b4")
		says("when that is replaced, and the other held", is)
		h.goes("b4")
		delete(is, timeout+" blue b4")
		says("when that is gone", is)
		h.pool("blue", nil)
		h.policy("p", forPool("blue"))
		says("when another governs the node", map[string]time.Time{red + " blue b1": due.Add(10 * time.Minute)})
		h.noPolicy("p")
		says("when no policy governs it", nil)
		if is := h.measured(triage.RuleID{Kind: policykind.Repair, Name: "RepairPolicy/p"}); len(is) > 0 {
			t.Errorf("the metrics know nodes of a deleted policy: %v", is)
		}
	}, timed)
}

// A storm does not fill the metrics.
func TestMetricsListTheFirstUnhealthyNodesOnly(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("0"))
		var names []string
		for i := range v1alpha1.MaxListedNodes + 5 {
			names = append(names, fmt.Sprintf("n%02d", i))
		}
		h.launches("default", names...)
		for _, name := range slices.Backward(names) {
			h.breaks(corev1.ConditionTrue, name)
			enginetest.Pass(time.Second)
		}
		h.advance(time.Second)
		told := map[string]bool{}
		for _, m := range collect(t, h.repairs.metrics.eligible) {
			told[m.labels["node"]] = true
		}
		if len(told) != v1alpha1.MaxListedNodes || told[names[0]] || !told[names[len(names)-1]] {
			t.Errorf("%d nodes are reported: %v", len(told), told)
		}
	})
}

// measure is one series.
type measure struct {
	labels map[string]string
	value  float64 // of a histogram, the sum
	count  uint64  // of a histogram
}

// collect reads the series of a gauge or a histogram.
func collect(t *testing.T, of prometheus.Collector) (all []measure) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(of)
	families, err := registry.Gather()
	testkit.Must(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			is := measure{map[string]string{}, m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum(), m.GetHistogram().GetSampleCount()}
			for _, label := range m.GetLabel() {
				is.labels[label.GetName()] = label.GetValue()
			}
			all = append(all, is)
		}
	}
	return all
}

// A node of a disabled policy counts once.
func TestAStartingNodeCountsOnceIfRepairsAreDisabled(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", nil)
		h.policy("p", forPool("default"), func(p *v1alpha1.RepairPolicy) { p.Spec.Repair.Enabled = new(false) })
		h.launches("default", "x")
		h.api.launch("a", "default", unready)
		h.deliver()
		if is := h.statusOf("p"); is.Nodes != 2 {
			t.Errorf("of 2 nodes it counts %d", is.Nodes)
		}
	}, timed)
}

// Metrics of deleted objects are deleted.
func TestMetricsForgetPoolsAndRules(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		h.pool("default", ofAtMost("1"))
		h.launches("default", "a", "b")
		h.breaks(corev1.ConditionTrue, "a")
		h.advance(10 * time.Minute)
		h.terminates("a")
		h.advance(time.Second)
		m := h.repairs.metrics
		nodes := func() int {
			return testutil.CollectAndCount(h.PolicyMetrics(), "autohealer_policy_nodes", "autohealer_policy_ready")
		}
		if nodes() == 0 || testutil.CollectAndCount(m.repairs) != 1 || testutil.CollectAndCount(m.poolHeld) != 1 {
			t.Errorf("before: %d, %d, %d", nodes(), testutil.CollectAndCount(m.repairs), testutil.CollectAndCount(m.poolHeld))
		}
		h.goes("a")
		h.goes("b")
		h.noPool("default")
		h.advance(time.Second)
		if nodes()+testutil.CollectAndCount(m.poolHeld) > 0 || testutil.CollectAndCount(m.repairs) != 1 {
			t.Errorf("at once: %d, %d, %d", nodes(), testutil.CollectAndCount(m.poolHeld), testutil.CollectAndCount(m.repairs))
		}
		enginetest.Pass(engine.CounterRetention)
		if h.runRound(); testutil.CollectAndCount(m.repairs)+testutil.CollectAndCount(h.PolicyMetrics()) > 0 || len(h.repairs.counts) > 0 {
			t.Errorf("afterwards: %d, %d, %v", testutil.CollectAndCount(m.repairs), testutil.CollectAndCount(h.PolicyMetrics()), h.repairs.counts)
		}
	})
}

// The ready timeout ignores a node that was Ready once, also after a change of leader.
func TestANodeThatWasReadyStaysStarted(t *testing.T) {
	unsaid := func(n *corev1.Node, c *karpenter.NodeClaim) { // Karpenter has not recorded it yet
		unready(n, c)
		n.Status.Conditions[0].Status = corev1.ConditionTrue
	}
	changeOf := func(h *nodePoolFixture) *treat.Change {
		plan, _ := h.Plan(h.Node("a"))
		return treat.Prepare(h.Node("a").Object, plan, time.Now())
	}
	for name, test := range map[string]struct {
		launch []func(*corev1.Node, *karpenter.NodeClaim)
		cfg    []func(*Config)
		noted  bool
	}{
		"ready":                   {[]func(*corev1.Node, *karpenter.NodeClaim){unsaid}, []func(*Config){timed}, true},
		"ready, without the gate": {[]func(*corev1.Node, *karpenter.NodeClaim){unsaid}, nil, false},
		"Karpenter has said so":   {nil, []func(*Config){timed}, false},
		"never":                   {[]func(*corev1.Node, *karpenter.NodeClaim){unready}, []func(*Config){timed}, false},
		"with its startup taints": {[]func(*corev1.Node, *karpenter.NodeClaim){unsaid, func(n *corev1.Node, c *karpenter.NodeClaim) {
			c.Spec.StartupTaints = []corev1.Taint{{Key: "starting", Effect: "NoSchedule"}}
			n.Spec.Taints = c.Spec.StartupTaints
		}}, []func(*Config){timed}, false},
		"before it is registered": {[]func(*corev1.Node, *karpenter.NodeClaim){unsaid, func(n *corev1.Node, _ *karpenter.NodeClaim) {
			n.Spec.Taints = []corev1.Taint{{Key: karpenter.UnregisteredTaint, Effect: "NoExecute"}}
		}}, []func(*Config){timed}, false},
		"of no pool": {[]func(*corev1.Node, *karpenter.NodeClaim){unsaid, func(n *corev1.Node, _ *karpenter.NodeClaim) {
			delete(n.Labels, karpenter.NodePoolLabel)
		}}, []func(*Config){timed}, false},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				h.T = t
				h.pool("default", nil)
				h.api.launch("a", "default", test.launch...)
				h.deliver("nodes") // the claim is not known yet
				testkit.Check(t, changeOf(h) == nil, "it is noted before it is known")
				h.deliver()
				change := changeOf(h)
				testkit.Require(t, (change != nil) == test.noted, "the change is %+v", change)
				if !test.noted {
					return
				}
				after := change.Made(h.api.next())
				if note, _ := ownership.Read(after.Annotations); !note.Initialized {
					t.Errorf("the note is %+v", note)
				}
				h.api.storeNode(after)
				h.deliver()
				if again := changeOf(h); again != nil {
					t.Error("it is written twice")
				}
				h.api.changeNode("a", func(n *corev1.Node) {
					n.Status.Conditions = slices.Clone(n.Status.Conditions)
					n.Status.Conditions[0].Status = corev1.ConditionFalse
				})
				h.deliver()
				successor := h.successor(timed)
				for _, h := range []*nodePoolFixture{h, successor} {
					if h.WantNoTask("a"); changeOf(h) != nil {
						t.Error("the note is written again")
					}
				}
				enginetest.Pass(time.Hour)
				for _, h := range []*nodePoolFixture{h, successor} {
					h.runRound()
					h.WantNoTask("a")
				}
			}, test.cfg...)
		})
	}
}

// The ready timeout applies to a node with startup taints, whichever watch is ahead.
func TestTheReadyTimeoutCoversNodesWithStartupTaints(t *testing.T) {
	for name, tell := range map[string]func(h *nodePoolFixture){
		"nodes, then claims":             func(h *nodePoolFixture) { h.pool("default", nil); h.deliver("nodes"); h.deliver("claims") },
		"claims, then nodes":             func(h *nodePoolFixture) { h.pool("default", nil); h.deliver("claims"); h.deliver("nodes") },
		"nodes, then claims, then pools": func(h *nodePoolFixture) { h.deliver("nodes"); h.deliver("claims"); h.pool("default", nil) },
		"nodes, then pools, then claims": func(h *nodePoolFixture) { h.deliver("nodes"); h.pool("default", nil); h.deliver("claims") },
	} {
		withNodePools(t, func(h *nodePoolFixture) {
			h.api.launch("a", "default", unready, func(n *corev1.Node, c *karpenter.NodeClaim) {
				n.Status.Conditions[0].Status = corev1.ConditionTrue
				c.Spec.StartupTaints = []corev1.Taint{{Key: "starting", Effect: "NoSchedule"}}
				n.Spec.Taints = c.Spec.StartupTaints
			})
			tell(h)
			if plan, _ := h.Core().Plan("a"); plan.Initialized {
				t.Errorf("%s: it is taken for initialised", name)
			}
			h.advance(10*time.Minute - time.Second)
			h.WantNoTask("a")
			h.advance(time.Second)
			h.terminates("a")
			at := slices.IndexFunc(h.Events, func(event treat.Event) bool { return event.EventReason == treat.ReadyTimeoutRecovery })
			if at < 0 || h.Events[at].Message != "Node failed to become ready within 10m0s, triggering recovery: deleting NodeClaim claim-a by force, without draining its pods; still on it: starting" || h.Events[at].Reason.Condition != triage.StartupTaints || len(h.Events[at].Related) != 2 {
				t.Errorf("%s: Events: %+v", name, h.Events)
			}
			if n := testutil.ToFloat64(h.repairs.metrics.readyTimeout.WithLabelValues("ReadyTimeout", "default", "default", "spot")); n != 1 {
				t.Errorf("%s: %v are counted", name, n)
			}
		}, timed)
	}
}

// A pool label alone does not mean that a claim will come: without NodeClaims there is
// none, and a replacement must count when it arrives.
func TestALabelledNodeIsReadyWithoutNodeClaims(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{Group: "karpenter.sh", Resource: "nodeclaims"}, "")
	for name, test := range map[string]struct {
		happens func(h *nodePoolFixture)
		is      bool
	}{
		"there are none":                  {func(h *nodePoolFixture) { h.claims.SetAvailability(gone) }, true},
		"there are others":                {func(*nodePoolFixture) {}, false},
		"they cannot be read for a while": {func(h *nodePoolFixture) { h.claims.SetAvailability(enginetest.ErrBroken) }, false},
		"none, and its pool is known": {func(h *nodePoolFixture) {
			h.claims.SetAvailability(gone)
			h.pool("default", nil)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				test.happens(h)
				n := enginetest.Named("plain", "1")
				n.Labels = map[string]string{karpenter.NodePoolLabel: "default"}
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
				h.api.storeNode(n)
				h.deliver()
				if plan, _ := h.Core().Plan("plain"); plan.Initialized != test.is {
					t.Errorf("it counts as ready for work: %t", plan.Initialized)
				}
			}, timed)
		})
	}
}

// A policy that another one shadows on all of its nodes is not accepted, whatever its mode.
func TestAShadowedPolicyIsNotAccepted(t *testing.T) {
	for _, mode := range []v1alpha1.PolicyMode{v1alpha1.PolicyEnforce, v1alpha1.PolicyObserve} {
		withNodePools(t, func(h *nodePoolFixture) {
			h.pool("default", ofAtMost("1"))
			h.api.launch("a", "default")
			h.deliver()
			h.policy("p", forPool("default"), func(p *v1alpha1.RepairPolicy) { p.Spec.Mode = mode })
			is := h.conditionOf("p", v1alpha1.Accepted)
			testkit.Check(t, is.Status == metav1.ConditionFalse && is.Reason == "Shadowed", "in mode %s: %+v", mode, is)
		})
	}
}

// The log says once of a policy and of a block that their ready timeouts have no effect without the
// feature gate.
func TestAReadyTimeoutWithoutItsGateIsLogged(t *testing.T) {
	withNodePools(t, func(h *nodePoolFixture) {
		timed := func(p *v1alpha1.RepairPolicy) { p.Spec.Repair.ReadyTimeout = "10m" }
		logs := func() int { return strings.Count(h.Log.String(), "ready timeout without effect") }
		h.policy("p", forPool("default"))
		testkit.Same(t, logs(), 0, "lines without a ready timeout")
		h.policy("p", forPool("default"), timed)
		h.policy("p", forPool("default"), timed, func(p *v1alpha1.RepairPolicy) { p.Spec.Repair.DefaultTolerationDuration = "1h" })
		testkit.Same(t, logs(), 1, "lines about a policy")
		block := ofAtMost("1")
		block.ReadyTimeout = "10m"
		h.pool("default", block)
		h.pool("default", block)
		testkit.Same(t, logs(), 2, "lines about a policy and a block")
	})
	withNodePools(t, func(h *nodePoolFixture) {
		h.policy("p", forPool("default"), func(p *v1alpha1.RepairPolicy) { p.Spec.Repair.ReadyTimeout = "10m" })
		testkit.Check(t, !strings.Contains(h.Log.String(), "ready timeout without effect"), "the log says that a ready timeout with its gate has no effect")
	}, func(cfg *Config) { cfg.ReadyTimeout = 10 * time.Minute })
}

// A pause stops new repairs of a policy or of a block, and continues those that have begun. Mode
// Observe starts nothing either.
func TestAnnotationsAndModesStopNewRepairs(t *testing.T) {
	type switched struct {
		annotations map[string]string
		mode        v1alpha1.PolicyMode // of a RepairPolicy
		code        triage.Code
		says        string
		shown       v1alpha1.Mode
	}
	pause := switched{map[string]string{v1alpha1.PausedAnnotation: "a test"}, "", triage.OnHold, "paused by annotation: a test", v1alpha1.Paused}
	for name, test := range map[string]struct {
		isBlock bool
		switched
	}{
		"a paused policy":                 {false, pause},
		"a paused block":                  {true, pause},
		"a policy that observes":          {false, switched{nil, v1alpha1.PolicyObserve, triage.DryRun, "would begin termination", v1alpha1.Observe}},
		"a block that observes":           {true, switched{map[string]string{v1alpha1.ModeAnnotation: "Observe"}, "", triage.DryRun, "would begin termination", v1alpha1.Observe}},
		"a block with an unknown mode":    {true, switched{map[string]string{v1alpha1.ModeAnnotation: "Watch"}, "", triage.OnHold, "want Enforce or Observe", v1alpha1.Enforce}},
		"the ready timeout of that block": {true, pause},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				kind := policykind.Repair
				block := ofAtMost("2")
				set := func(s switched) {
					if test.isBlock {
						h.pool("default", block, func(p *repairblock.Pool) { p.Annotations = s.annotations })
						return
					}
					before := h.repairs.policies["p"]
					h.policy("p", forPool("default"), func(p *v1alpha1.RepairPolicy) {
						p.Annotations, p.Spec.Mode, p.Spec.Repair = s.annotations, s.mode, *block
						if before != nil && before.object.Spec.Mode == s.mode { // as the API server does
							p.Generation--
						}
					})
				}
				h.pool("default", nil)
				set(switched{})
				h.launches("default", "a", "c", "d")
				if name == "the ready timeout of that block" {
					kind = policykind.ReadyTimeout
					h.api.launch("b", "default", unready)
					h.deliver()
				} else {
					h.launches("default", "b")
				}
				h.breaks(corev1.ConditionTrue, "a")
				h.advance(30 * time.Minute)
				h.terminates("a")
				set(test.switched)
				h.breaks(corev1.ConditionTrue, "b")
				h.advance(30 * time.Minute)
				h.WantNoTask("b")
				if is := h.finding(kind, "b"); is.Code != test.code || !strings.Contains(is.String(), test.says) {
					t.Errorf("the node says %s", is)
				}
				var status v1alpha1.RepairPolicyStatus
				if test.isBlock {
					status = h.mirrorOf("default")
				} else {
					status = h.statusOf("p")
				}
				accepted, ready := meta.FindStatusCondition(status.Conditions, v1alpha1.Accepted), meta.FindStatusCondition(status.Conditions, v1alpha1.Ready)
				if status.Mode != test.shown || accepted.Reason == "Followed" || !strings.HasPrefix(ready.Message, accepted.Message+"; ") {
					t.Errorf("the status has mode %s: %+v", status.Mode, status.Conditions)
				}
				if isInvalid := accepted.Reason == "Invalid"; isInvalid != slices.ContainsFunc(h.Events, func(e treat.Event) bool {
					return e.EventReason == treat.NotAccepted && strings.Contains(e.Failure, test.says)
				}) {
					t.Errorf("the policy is invalid: %t, and there are the Events %+v", isInvalid, h.Events)
				}
				set(switched{})
				h.WantTask("b", nodeclaim.TerminateClaim)
			}, func(c *Config) {
				if name == "the ready timeout of that block" {
					c.ReadyTimeout = 10 * time.Minute
				}
			})
		})
	}
}

// mirrorOf returns the status of the mirror of a pool.
func (h *nodePoolFixture) mirrorOf(pool string) v1alpha1.RepairPolicyStatus {
	sum := &repairCounts{}
	for id, r := range h.repairs.followed {
		if r.policy == nil && r.pool == pool {
			counts, _ := h.Core().Population(id)
			sum.add(h.repairs.countRepair(r, counts))
		}
	}
	return h.repairs.mirrorContent(h.repairs.pools[pool], &poolMirror{}, sum).Status
}

// A closed window and a paused node keep repairs from starting: those of a policy, of a block and of
// a ready timeout. The status says until when. An urgent condition does not wait for the window.
func TestClosedWindowsAndPausedNodesHoldRepairs(t *testing.T) {
	for name, test := range map[string]struct{ isBlock, isTimeout, isUrgent bool }{
		"a policy":           {false, false, false},
		"a block":            {true, false, false},
		"a ready timeout":    {true, true, false},
		"an urgent policy":   {false, false, true},
		"an urgent block":    {true, false, true},
		"a policy's timeout": {false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			withNodePools(t, func(h *nodePoolFixture) {
				block := ofAtMost("1")
				block.Windows = []v1alpha1.Window{{Schedule: "0 12 * * *", Duration: "1h"}}
				block.Policies = []v1alpha1.ConditionRepair{{ConditionType: broken, ConditionStatus: "True", Toleration: "10m", Urgent: test.isUrgent}}
				h.pool("default", nil)
				if test.isBlock {
					h.pool("default", block)
				} else {
					h.policy("p", forPool("default"), func(p *v1alpha1.RepairPolicy) { p.Spec.Repair = *block })
				}
				h.launches("default", "a", "c", "d")
				if test.isTimeout {
					h.api.launch("b", "default", unready)
					h.deliver()
				} else {
					h.launches("default", "b")
					h.breaks(corev1.ConditionTrue, "b")
				}
				says := func(code triage.Code, words string) {
					t.Helper()
					h.WantNoTask("b")
					status := h.statusOf
					if test.isBlock {
						status = h.mirrorOf
					}
					rows := status(map[bool]string{false: "p", true: "default"}[test.isBlock]).UnhealthyNodes
					if len(rows) != 1 || rows[0].Name != "b" || rows[0].Reason != code.String() || !strings.Contains(rows[0].Message, words) {
						t.Errorf("the unhealthy nodes are %+v, want b with %s and %q", rows, code, words)
					}
				}
				pause := func(value string) {
					h.api.changeNode("b", func(n *corev1.Node) { n.Annotations = map[string]string{nodepause.Annotation: value} })
					h.deliver()
				}
				h.advance(30 * time.Minute)
				if test.isUrgent {
					h.WantTask("b", nodeclaim.TerminateClaim)
					pause("until=2000-01-01T12:30:00Z by=anna")
					says(triage.NodePaused, "until 2000-01-01T12:30:00Z")
					return
				}
				says(triage.OutsideWindow, "outside the window 0 12 * * * for 1h, continues at 2000-01-01T12:00:00Z")
				pause("until=2000-01-01T12:30:00Z by=anna")
				h.advance(time.Until(time.Date(2000, time.January, 1, 12, 1, 0, 0, time.UTC)))
				says(triage.NodePaused, "until 2000-01-01T12:30:00Z")
				h.advance(30 * time.Minute)
				h.WantTask("b", nodeclaim.TerminateClaim)
			}, timed)
		})
	}
}
