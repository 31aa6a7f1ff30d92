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

// The names of Karpenter, and the names of our annotations on Karpenter's objects. They are
// repeated here on purpose.
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

// claim is a version of a NodeClaim.
type claim struct {
	object     *unstructured.Unstructured
	uid        types.UID
	name, pool string
	providerID string
	startup    []taintID // the startup taints of its node
	template   string    // a hash of its template, empty if it is unknown

	deleting, initialized, ending bool
	disrupted                     string // Karpenter's disruption reason, empty if there is none
	mark                          mark
}

// mark is our mark on a claim that is to be deleted.
type mark struct {
	text    string // as stored, empty if there is none
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
		c.startup = append(c.startup, taintID{text(row, "key"), text(row, "effect")})
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

// vetoIn returns the name of the annotation that forbids repair, if there is one.
func vetoIn(annotations map[string]string) string {
	if annotations[theirVeto] == "true" {
		return theirVeto
	}
	if value, there := annotations[ourVeto]; there && value != "false" {
		return ourVeto
	}
	return ""
}

// allowance is a disruption budget.
type allowance struct {
	nodes              string
	isForUs            bool // it applies to the reason for which unhealthy nodes are deleted
	schedule, duration string
}

// readBudgets parses the budgets of a NodePool. Missing budgets mean Karpenter's default.
// An empty list means no budget.
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

// allowedBy returns how many nodes may be taken out of service at this time. The smallest
// budget counts. A budget that cannot be read allows none.
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

// isActive reports whether the budget applies at this time: from a hit of its schedule
// until its duration has passed. A budget without both always applies, and so does a budget
// whose schedule never hits.
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
