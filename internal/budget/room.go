package budget

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/times"
)

// Unbounded is the result for a pool without an active budget.
const Unbounded = math.MaxInt32

// defaultBudget applies to a pool without the budgets field. The schema of Karpenter writes
// it into such pools.
var defaultBudget = karpenter.Budget{Nodes: "10%"}

// Room returns how many more nodes of a pool may be disrupted for a reason now. The pool has
// total nodes, of which disrupting are being disrupted already. The message says which
// budget decides. Without a limit the room is [Unbounded] and the message is empty. The
// result may change by time alone from changes on; zero means never.
//
// The smallest budget counts. Budgets that are nil mean the default of Karpenter, 10%. An
// empty list means no limit.
func Room(now time.Time, pool string, budgets []karpenter.Budget, reason string, total, disrupting int) (room int, message string, changes time.Time) {
	if budgets == nil {
		budgets = []karpenter.Budget{defaultBudget}
	}
	allowed := Unbounded
	for _, budget := range budgets {
		state := evaluate(now, budget, total)
		counts := budget.Reasons == nil || slices.Contains(budget.Reasons, reason)
		if state.parseError != "" {
			// Karpenter then disrupts nothing, whatever the reasons of the budget.
			counts, state.allowed = true, 0
		}
		if counts || state.unreadableInWindow {
			changes = times.Earliest(changes, state.changes)
		}
		if counts && state.allowed < allowed {
			allowed, message = state.allowed, state.message(pool, budget, total, disrupting)
		}
	}
	if allowed == Unbounded {
		return Unbounded, "", changes
	}
	return max(0, allowed-disrupting), message, changes
}

// budgetState is the state of one budget at one time.
type budgetState struct {
	allowed    int       // [Unbounded] while the budget is not active
	changes    time.Time // when the state may change
	parseError string    // why the budget cannot be read
	// unreadableInWindow says that the budget cannot be read while it is active, but is not
	// active now.
	unreadableInWindow bool
}

// evaluate evaluates one budget. Karpenter parses the number of nodes only while the budget
// is active.
func evaluate(now time.Time, budget karpenter.Budget, total int) budgetState {
	if budget.Unreadable != "" {
		return budgetState{parseError: budget.Unreadable}
	}
	window, err := readWindow(budget)
	if err != nil {
		return budgetState{parseError: err.Error()}
	}
	holds, changes := window.at(now)
	allowed, err := scaled(budget.Nodes, total)
	switch {
	case !holds:
		return budgetState{allowed: Unbounded, changes: changes, unreadableInWindow: err != nil}
	case err != nil:
		return budgetState{parseError: err.Error(), changes: changes}
	}
	return budgetState{allowed: allowed, changes: changes}
}

// IsReadable says whether a budget can be read, active or not.
func IsReadable(budget karpenter.Budget) bool {
	_, broken := readWindow(budget)
	_, odd := scaled(budget.Nodes, 0)
	return budget.Unreadable == "" && broken == nil && odd == nil
}

// scaled parses a number of nodes, or a percentage of total, rounded up.
func scaled(nodes string, total int) (int, error) {
	if n, err := strconv.Atoi(nodes); err == nil {
		return max(0, int(int32(n))), nil // Karpenter uses 32 bits
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(new(intstr.FromString(nodes)), total, true)
	if err != nil {
		return 0, fmt.Errorf("want a number of nodes like 5, or a percentage like 10%%, not %q", nodes)
	}
	return n, nil
}

func (v budgetState) message(pool string, budget karpenter.Budget, total, disrupting int) string {
	of := fmt.Sprintf("NodePool %s's disruption budget", pool)
	if v.parseError != "" {
		return fmt.Sprintf("%s%s cannot be read, so it allows none: %s", of, scheduleText(budget), v.parseError)
	}
	share := fmt.Sprintf("%s of %s", budget.Nodes, count(total, "node"))
	if _, err := strconv.Atoi(budget.Nodes); err == nil {
		share = budget.Nodes
	}
	verb := "are"
	if disrupting == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%s %s%s allows %d, and %d %s being disrupted", of, share, scheduleText(budget), v.allowed, disrupting, verb)
}

// scheduleText describes the schedule of a budget, if it has one.
func scheduleText(budget karpenter.Budget) string {
	if budget.Schedule == nil {
		return ""
	}
	return fmt.Sprintf(" on schedule %q for %s", *budget.Schedule, budget.Duration)
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
