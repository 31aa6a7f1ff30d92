package history

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// What Karpenter calls things, and what we write on what is Karpenter's, written down a
// second time.
const (
	poolLabel          = "karpenter.sh/nodepool"
	initializedLabel   = "karpenter.sh/initialized"
	deadlineAnnotation = "karpenter.sh/nodeclaim-termination-timestamp"
	theirVeto          = "karpenter.sh/do-not-repair"
	unregisteredTaint  = "karpenter.sh/unregistered"
	templateAnnotation = "karpenter.sh/nodepool-hash"
	unhealthyReason    = "Unhealthy"
	budgetByDefault    = "10%"

	ourVeto        = "autohealer.resourcestack.com/do-not-repair"
	markAnnotation = "autohealer.resourcestack.com/repair"
	claimInLedger  = "NodeClaim.karpenter.sh /"

	repairKind  = "Repair/"
	timeoutKind = "ReadyTimeout/"
)

// claim is one version of a NodeClaim.
type claim struct {
	object     *unstructured.Unstructured
	uid        types.UID
	name, pool string
	providerID string
	startup    []spot // the taints that its node begins with
	template   string // a hash of what it was made from, empty if that is unknown

	deleting, initialized, ending bool
	disrupted                     string // how Karpenter has it in hand, empty if it has not
	mark                          mark
}

// mark is what stands on a claim that is to be deleted.
type mark struct {
	text    string // as it is written, empty if there is none
	Rule    string
	Node    string
	NodeUID types.UID
	problem error // why it cannot be read
}

func readClaim(object *unstructured.Unstructured) claim {
	c := claim{
		object: object, uid: object.GetUID(), name: object.GetName(), pool: object.GetLabels()[poolLabel],
		template: object.GetAnnotations()[templateAnnotation], deleting: object.GetDeletionTimestamp() != nil,
	}
	c.providerID, _, _ = unstructured.NestedString(object.Object, "status", "providerID")
	for _, row := range rows(object, "spec", "startupTaints") {
		c.startup = append(c.startup, spot{text(row, "key"), text(row, "effect")})
	}
	if c.deleting {
		c.disrupted = "is being deleted"
	}
	for _, row := range rows(object, "status", "conditions") {
		if text(row, "status") != "True" {
			continue
		}
		switch text(row, "type") {
		case "Initialized":
			c.initialized = true
		case "InstanceTerminating":
			c.ending, c.disrupted = true, "has its machine terminated"
		case "Rebooting":
			c.disrupted = "is being rebooted"
		case "DisruptionReason":
			c.disrupted = "was chosen by Karpenter: " + text(row, "reason")
		}
	}
	if written, there := object.GetAnnotations()[markAnnotation]; there {
		c.mark.problem = json.Unmarshal([]byte(written), &c.mark)
		c.mark.text = written
	}
	return c
}

func (c *claim) deadline() string { return c.object.GetAnnotations()[deadlineAnnotation] }

func (c *claim) String() string { return "NodeClaim " + c.name }

// vetoIn names the annotation by which somebody forbids repair, if one does.
func vetoIn(annotations map[string]string) string {
	if annotations[theirVeto] == "true" {
		return theirVeto
	}
	if value, there := annotations[ourVeto]; there && value != "false" {
		return ourVeto
	}
	return ""
}

// allowance is one disruption budget.
type allowance struct {
	nodes              string
	isForUs            bool // it is for the reason for which sick nodes go
	schedule, duration string
}

// readBudgets reads the budgets of a NodePool. Those that are missing are Karpenter's
// default, and an empty list is none.
func readBudgets(pool *unstructured.Unstructured) []allowance {
	if _, given, _ := unstructured.NestedFieldNoCopy(pool.Object, "spec", "disruption", "budgets"); !given {
		return []allowance{{nodes: budgetByDefault, isForUs: true}}
	}
	var budgets []allowance
	for _, row := range rows(pool, "spec", "disruption", "budgets") {
		a := allowance{nodes: text(row, "nodes"), isForUs: true, schedule: text(row, "schedule"), duration: text(row, "duration")}
		if reasons, given := row["reasons"].([]any); given {
			a.isForUs = slices.Contains(reasons, any(unhealthyReason))
		}
		budgets = append(budgets, a)
	}
	return budgets
}

// allowedBy is how many of so many nodes may be taken out of service at a moment. The
// smallest budget counts, and one that cannot be read allows none at all.
func allowedBy(budgets []allowance, total int, at time.Time) int {
	allowed := math.MaxInt
	for _, a := range budgets {
		isActive, isReadable := a.isActive(at)
		if !isReadable {
			return 0
		}
		if !isActive {
			continue
		}
		digits, percent := strings.CutSuffix(a.nodes, "%")
		number, err := strconv.Atoi(digits)
		if err != nil {
			return 0
		}
		if percent {
			number = (total*number + 99) / 100
		}
		if a.isForUs {
			allowed = min(allowed, number)
		}
	}
	return allowed
}

// isActive says whether the budget holds at a moment: from a hit of its schedule until
// its duration has passed, and always if it has none of the two or its schedule never
// hits.
func (a allowance) isActive(at time.Time) (isActive, isReadable bool) {
	if a.schedule == "" && a.duration == "" {
		return true, true
	}
	schedule, err := cron.ParseStandard("TZ=UTC " + a.schedule)
	if err != nil {
		return false, false
	}
	lasts := time.Duration(0)
	if a.duration != "" {
		if lasts, err = time.ParseDuration(a.duration); err != nil {
			return false, false
		}
	}
	return !schedule.Next(at.UTC().Add(-lasts)).After(at), true
}
