package budget

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/internal/karpenter"
)

// Unbounded is the room of a pool that no budget bounds.
const Unbounded = math.MaxInt32

// byDefault is the budget of a pool that says nothing of budgets. Karpenter's
// schema writes it into every such pool.
var byDefault = karpenter.Budget{Nodes: "10%"}

// Room says how many more of a pool's nodes may be disrupted for a reason now, where
// so many of its total are being disrupted already. The words tell what decides it;
// they are empty if nothing bounds it, and the room is [Unbounded] then. It may be
// another one from the time that changes tells, by the clock alone; a zero time
// stands for never.
//
// Of several budgets the smallest counts. Absent budgets are Karpenter's default
// of 10%, while an empty list bounds nothing.
func Room(now time.Time, pool string, budgets []karpenter.Budget, reason string, total, disrupting int) (room int, words string, changes time.Time) {
	if budgets == nil {
		budgets = []karpenter.Budget{byDefault}
	}
	allowed := Unbounded
	for _, budget := range budgets {
		says := look(now, budget, total)
		counts := budget.Reasons == nil || slices.Contains(budget.Reasons, reason)
		if says.broken != "" {
			// Karpenter then lets nothing go, for whatever reason the budget is.
			counts, says.allowed = true, 0
		}
		if counts || says.mayBreak {
			changes = earlier(changes, says.changes)
		}
		if counts && says.allowed < allowed {
			allowed, words = says.allowed, says.words(pool, budget, total, disrupting)
		}
	}
	if allowed == Unbounded {
		return Unbounded, "", changes
	}
	return max(0, allowed-disrupting), words, changes
}

// verdict is what one budget says at one instant.
type verdict struct {
	allowed int       // [Unbounded] while the budget does not hold
	changes time.Time // from when it may say something else
	broken  string    // why it cannot be read
	// mayBreak says that the budget cannot be read in its time, which is not now.
	mayBreak bool
}

// look reads one budget. Whether its number can be read, Karpenter asks only while
// the budget holds.
func look(now time.Time, budget karpenter.Budget, total int) verdict {
	if budget.Unreadable != "" {
		return verdict{broken: budget.Unreadable}
	}
	window, err := readWindow(budget)
	if err != nil {
		return verdict{broken: err.Error()}
	}
	holds, changes := window.at(now)
	allowed, err := scaled(budget.Nodes, total)
	switch {
	case !holds:
		return verdict{allowed: Unbounded, changes: changes, mayBreak: err != nil}
	case err != nil:
		return verdict{broken: err.Error(), changes: changes}
	}
	return verdict{allowed: allowed, changes: changes}
}

// IsReadable says whether a budget can be read, in its time or not.
func IsReadable(budget karpenter.Budget) bool {
	_, broken := readWindow(budget)
	_, odd := scaled(budget.Nodes, 0)
	return budget.Unreadable == "" && broken == nil && odd == nil
}

// scaled reads a number of nodes, or a share of all, which is rounded up.
func scaled(nodes string, total int) (int, error) {
	if n, err := strconv.Atoi(nodes); err == nil {
		return max(0, int(int32(n))), nil // Karpenter has 32 bits for it
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(new(intstr.FromString(nodes)), total, true)
	if err != nil {
		return 0, fmt.Errorf("want a number of nodes such as 5, or a share such as 10%%, not %q", nodes)
	}
	return n, nil
}

func (v verdict) words(pool string, budget karpenter.Budget, total, disrupting int) string {
	of := fmt.Sprintf("NodePool %s's disruption budget", pool)
	if v.broken != "" {
		return fmt.Sprintf("%s%s cannot be read, so it allows none: %s", of, inItsTime(budget), v.broken)
	}
	share := fmt.Sprintf("%s of %s", budget.Nodes, count(total, "node"))
	if _, err := strconv.Atoi(budget.Nodes); err == nil {
		share = budget.Nodes
	}
	verb := "are"
	if disrupting == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%s %s%s allows %d, and %d %s being disrupted", of, share, inItsTime(budget), v.allowed, disrupting, verb)
}

// inItsTime tells the schedule of a budget, if it has one.
func inItsTime(budget karpenter.Budget) string {
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

// earlier returns the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
