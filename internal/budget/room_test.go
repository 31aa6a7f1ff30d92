package budget_test

import (
	"bufio"
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/budget"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// monday is a Monday at noon.
var monday = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// at returns a budget with a schedule.
func at(schedule, duration, nodes string, reasons ...string) karpenter.Budget {
	return karpenter.Budget{Nodes: nodes, Schedule: &schedule, Duration: duration, Reasons: reasons}
}

func TestRoom(t *testing.T) {
	const none = budget.Unbounded
	office := at("0 9 * * mon-fri", "8h", "0")
	tests := []struct {
		name       string
		now        time.Time
		budgets    []karpenter.Budget
		total      int
		disrupting int
		room       int
		words      string
		changes    time.Time
	}{
		{"a percentage of the nodes", monday, []karpenter.Budget{{Nodes: "10%"}}, 20, 2, 0,
			"NodePool default's disruption budget 10% of 20 nodes allows 2, and 2 are being disrupted", time.Time{}},
		{"a percentage is rounded up", monday, []karpenter.Budget{{Nodes: "10%"}}, 21, 1, 2,
			"NodePool default's disruption budget 10% of 21 nodes allows 3, and 1 is being disrupted", time.Time{}},
		{"10% of 1 is 1", monday, []karpenter.Budget{{Nodes: "10%"}}, 1, 0, 1,
			"NodePool default's disruption budget 10% of 1 node allows 1, and 0 are being disrupted", time.Time{}},
		{"10% of 0 is 0", monday, []karpenter.Budget{{Nodes: "10%"}}, 0, 0, 0,
			"NodePool default's disruption budget 10% of 0 nodes allows 0, and 0 are being disrupted", time.Time{}},
		{"a number", monday, []karpenter.Budget{{Nodes: "3"}}, 20, 1, 2,
			"NodePool default's disruption budget 3 allows 3, and 1 is being disrupted", time.Time{}},
		{"a number that does not fit into 32 bits", monday, []karpenter.Budget{{Nodes: "4294967299"}}, 20, 0, 3,
			"NodePool default's disruption budget 4294967299 allows 3, and 0 are being disrupted", time.Time{}},
		{"more disrupted than allowed", monday, []karpenter.Budget{{Nodes: "3"}}, 20, 5, 0,
			"NodePool default's disruption budget 3 allows 3, and 5 are being disrupted", time.Time{}},
		{"nil budgets mean the default", monday, nil, 20, 0, 2,
			"NodePool default's disruption budget 10% of 20 nodes allows 2, and 0 are being disrupted", time.Time{}},
		{"an empty list means no limit", monday, []karpenter.Budget{}, 20, 7, none, "", time.Time{}},
		{"the smallest of several", monday, []karpenter.Budget{{Nodes: "50%"}, {Nodes: "1"}, {Nodes: "30%"}}, 20, 0, 1,
			"NodePool default's disruption budget 1 allows 1, and 0 are being disrupted", time.Time{}},
		{"a budget for other reasons does not count", monday, []karpenter.Budget{{Nodes: "0", Reasons: []string{"Drifted", "Empty"}}, {Nodes: "4"}}, 20, 0, 4,
			"NodePool default's disruption budget 4 allows 4, and 0 are being disrupted", time.Time{}},
		{"a budget for this reason and others", monday, []karpenter.Budget{{Nodes: "0", Reasons: []string{"Drifted", "Unhealthy"}}, {Nodes: "4"}}, 20, 0, 0,
			"NodePool default's disruption budget 0 allows 0, and 0 are being disrupted", time.Time{}},
		{"an empty list of reasons matches no reason", monday, []karpenter.Budget{{Nodes: "0", Reasons: []string{}}}, 20, 0, none, "", time.Time{}},

		{"inside the window", monday, []karpenter.Budget{office}, 20, 0, 0,
			`NodePool default's disruption budget 0 on schedule "0 9 * * mon-fri" for 8h allows 0, and 0 are being disrupted`, monday.Add(5 * time.Hour)},
		{"when the window opens", monday.Add(-3 * time.Hour), []karpenter.Budget{office}, 20, 0, 0,
			`NodePool default's disruption budget 0 on schedule "0 9 * * mon-fri" for 8h allows 0, and 0 are being disrupted`, monday.Add(5 * time.Hour)},
		{"just before the window opens", monday.Add(-3*time.Hour - 1), []karpenter.Budget{office}, 20, 0, none, "", monday.Add(-3 * time.Hour)},
		{"just before the window closes", monday.Add(5*time.Hour - 1), []karpenter.Budget{office}, 20, 0, 0,
			`NodePool default's disruption budget 0 on schedule "0 9 * * mon-fri" for 8h allows 0, and 0 are being disrupted`, monday.Add(5 * time.Hour)},
		{"when the window closes", monday.Add(5 * time.Hour), []karpenter.Budget{office}, 20, 0, none, "", monday.Add(21 * time.Hour)},
		{"over the weekend", monday.AddDate(0, 0, 4).Add(5 * time.Hour), []karpenter.Budget{office}, 20, 0, none, "", monday.AddDate(0, 0, 7).Add(-3 * time.Hour)},
		{"in another time zone", monday.In(time.FixedZone("far", 11*3600)), []karpenter.Budget{office}, 20, 0, 0,
			`NodePool default's disruption budget 0 on schedule "0 9 * * mon-fri" for 8h allows 0, and 0 are being disrupted`, monday.Add(5 * time.Hour)},
		{"beside a budget without a schedule", monday.Add(6 * time.Hour), []karpenter.Budget{office, {Nodes: "2"}}, 20, 0, 2,
			"NodePool default's disruption budget 2 allows 2, and 0 are being disrupted", monday.Add(21 * time.Hour)},
		{"hits that extend a window", monday, []karpenter.Budget{at("0 9,12,15 * * *", "4h", "1")}, 20, 0, 1,
			`NodePool default's disruption budget 1 on schedule "0 9,12,15 * * *" for 4h allows 1, and 0 are being disrupted`, monday.Add(7 * time.Hour)},
		{"a window that begins as the other ends", monday, []karpenter.Budget{at("0 11,13 * * *", "2h", "1")}, 20, 0, 1,
			`NodePool default's disruption budget 1 on schedule "0 11,13 * * *" for 2h allows 1, and 0 are being disrupted`, monday.Add(3 * time.Hour)},
		{"a window that never closes is evaluated again", monday, []karpenter.Budget{at("@hourly", "2h", "1")}, 20, 0, 1,
			`NodePool default's disruption budget 1 on schedule "@hourly" for 2h allows 1, and 0 are being disrupted`, monday.Add(101 * time.Hour)},
		{"a budget for another reason does not affect the next change", monday, []karpenter.Budget{at("0 13 * * *", "1h", "0", "Drifted"), {Nodes: "1"}}, 20, 0, 1,
			"NodePool default's disruption budget 1 allows 1, and 0 are being disrupted", time.Time{}},
		{"a schedule without a duration is never active", monday, []karpenter.Budget{at("* * * * *", "", "0")}, 20, 0, none, "", time.Time{}},
		{"a schedule that never hits is always active", monday, []karpenter.Budget{at("0 0 30 2 *", "1h", "1")}, 20, 0, 1,
			`NodePool default's disruption budget 1 on schedule "0 0 30 2 *" for 1h allows 1, and 0 are being disrupted`, time.Time{}},

		{"an invalid schedule closes the pool", monday, []karpenter.Budget{{Nodes: "5"}, at("@hourlyxyz", "1h", "5")}, 20, 0, 0,
			`NodePool default's disruption budget on schedule "@hourlyxyz" for 1h cannot be read, so it allows none: its schedule "@hourlyxyz": unrecognized descriptor: @hourlyxyz`, time.Time{}},
		{"an invalid schedule of a budget for another reason closes the pool", monday, []karpenter.Budget{{Nodes: "5"}, at("0 9 * * 7", "1h", "5", "Drifted")}, 20, 0, 0,
			`NodePool default's disruption budget on schedule "0 9 * * 7" for 1h cannot be read, so it allows none: its schedule "0 9 * * 7": end of range (7) above maximum (6): 7`, time.Time{}},
		{"a duration without a schedule", monday, []karpenter.Budget{{Nodes: "5", Duration: "1h"}}, 20, 0, 0,
			`NodePool default's disruption budget cannot be read, so it allows none: its schedule "": expected exactly 5 fields, found 0: []`, time.Time{}},
		{"an invalid duration", monday, []karpenter.Budget{at("@daily", "long", "5")}, 20, 0, 0,
			`NodePool default's disruption budget on schedule "@daily" for long cannot be read, so it allows none: its duration: want one like 8h, not "long"`, time.Time{}},
		{"an invalid number", monday, []karpenter.Budget{{Nodes: "many"}}, 20, 0, 0,
			`NodePool default's disruption budget cannot be read, so it allows none: want a number of nodes like 5, or a percentage like 10%, not "many"`, time.Time{}},
		{"an invalid number for another reason", monday, []karpenter.Budget{{Nodes: "many", Reasons: []string{"Drifted"}}}, 20, 0, 0,
			`NodePool default's disruption budget cannot be read, so it allows none: want a number of nodes like 5, or a percentage like 10%, not "many"`, time.Time{}},
		{"an invalid number matters only inside the window", monday, []karpenter.Budget{at("0 13 * * *", "1h", "many", "Drifted"), {Nodes: "5"}}, 20, 0, 5,
			"NodePool default's disruption budget 5 allows 5, and 0 are being disrupted", monday.Add(time.Hour)},
		{"what did not fit at all", monday, []karpenter.Budget{{Unreadable: "it is a number"}}, 20, 0, 0,
			"NodePool default's disruption budget cannot be read, so it allows none: it is a number", time.Time{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			room, words, changes := budget.Room(test.now, "default", test.budgets, karpenter.Unhealthy, test.total, test.disrupting)
			if room != test.room || words != test.words || !changes.Equal(test.changes) {
				t.Errorf("got  %d, %q, %s\nwant %d, %q, %s", room, words, changes, test.room, test.words, test.changes)
			}
		})
	}
}

// The file has the results of NodePool.MustGetAllowedDisruptions in Karpenter 1.15.0.
func TestKarpenterCountsTheSame(t *testing.T) {
	file, err := os.Open("testdata/karpenter-1.15.0.jsonl")
	testkit.Must(t, err)
	defer file.Close()
	var rows, none, closed, scheduled int
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var row struct {
			Now     time.Time
			Budgets []karpenter.Budget
			Reason  string
			Total   int
			Allowed int
		}
		testkit.Must(t, json.Unmarshal(lines.Bytes(), &row))
		rows++
		room, words, _ := budget.Room(row.Now, "default", row.Budgets, row.Reason, row.Total, 0)
		if want := max(0, row.Allowed); room != want {
			t.Errorf("%s\ncounts %d (%s)", lines.Bytes(), room, words)
		}
		switch {
		case row.Allowed == math.MaxInt32:
			none++
		case row.Allowed <= 0:
			closed++
		case strings.Contains(words, "schedule"):
			scheduled++
		}
	}
	t.Logf("%d rows, of which %d are unbounded, %d closed, and %d bounded by a schedule", rows, none, closed, scheduled)
	testkit.Check(t, none >= 10 && closed >= 10 && scheduled >= 10, "too few rows of one kind")
}

// someBudgets draws budgets, most of which can be read.
func someBudgets(most int) *rapid.Generator[[]karpenter.Budget] {
	one := rapid.Custom(func(t *rapid.T) karpenter.Budget {
		b := karpenter.Budget{Nodes: rapid.SampledFrom([]string{"0", "1", "3", "10%", "50%", "100%", "7", "odd"}).Draw(t, "nodes")}
		b.Reasons = rapid.SampledFrom([][]string{nil, nil, {}, {"Unhealthy"}, {"Drifted"}, {"Empty", "Unhealthy"}}).Draw(t, "reasons")
		if rapid.Bool().Draw(t, "scheduled") {
			b.Schedule = new(rapid.SampledFrom([]string{
				"@daily", "@hourly", "0 9 * * mon-fri", "*/15 * * * *", "30 23 * * sat", "* * * * *", "0 0 30 2 *", "17 3 1 * *", "0 12 13 * fri", "0 9 * * 7",
			}).Draw(t, "schedule"))
			b.Duration = rapid.SampledFrom([]string{"", "1m", "10m", "1h", "90m", "8h", "24h", "200h"}).Draw(t, "duration")
		}
		return b
	})
	return rapid.SliceOfN(one, 0, most)
}

func TestRoomDoesNotChangeEarly(t *testing.T) {
	var differed, stayed int
	rapid.Check(t, func(t *rapid.T) {
		budgets := someBudgets(4).Draw(t, "budgets")
		total := rapid.IntRange(0, 40).Draw(t, "total")
		disrupting := rapid.IntRange(0, total).Draw(t, "disrupting")
		now := monday.Add(time.Duration(rapid.Int64Range(0, int64(400*24*time.Hour)).Draw(t, "now")))
		if rapid.Bool().Draw(t, "on the hour") {
			now = now.Truncate(time.Hour)
		}
		ask := func(now time.Time) (int, string, time.Time) {
			return budget.Room(now, "default", budgets, karpenter.Unhealthy, total, disrupting)
		}
		room, words, changes := ask(now)
		testkit.Require(t, room >= 0, "room for %d", room)
		testkit.Require(t, (words == "") == (room == budget.Unbounded), "room for %d, because %q", room, words)
		if fewer := len(budgets) - 1; fewer >= 0 {
			if more, _, _ := budget.Room(now, "default", budgets[:fewer], karpenter.Unhealthy, total, disrupting); more < room {
				t.Fatalf("room for %d, and for %d with a budget less", room, more)
			}
		}
		// Nothing may change until then; if it is zero, nothing may ever change.
		span := int64(30 * 24 * time.Hour)
		if !changes.IsZero() {
			testkit.Require(t, changes.After(now), "changes at %s, and it is %s", changes, now)
			span = int64(changes.Sub(now)) - 1
		}
		later := now.Add(time.Duration(rapid.Int64Range(0, span).Draw(t, "later")))
		for _, then := range []time.Time{later, now.Add(time.Duration(span))} {
			if other, others, _ := ask(then); other != room || others != words {
				t.Fatalf("room for %d (%s) at %s, for %d (%s) at %s, and it should not change before %s", room, words, now, other, others, then, changes)
			}
		}
		if !changes.IsZero() {
			if other, others, _ := ask(changes); other != room || others != words {
				differed++
			} else {
				stayed++
			}
		}
	})
	t.Logf("at the time of change the answer was another one %d times, and the same %d times", differed, stayed)
	testkit.Check(t, differed != 0, "the answer never changed")
}

func FuzzRoom(f *testing.F) {
	for _, schedule := range []string{"@daily", "0 9 * * mon-fri", "@every 5m", "TZ=Europe/Berlin 0 9 * * *", "", " ", "TZ=", "*/0 * * * *", "0-99999999 * * * *", "@", "? ? ? ? ?", "1,2,,3 * * * *", ", * * * *", "0 , * * *", "CRON_TZ=", "TZ=UTC", "@every -1h"} {
		f.Add(schedule, "8h", "10%", int64(0))
	}
	f.Add("@hourly", "-5m", "5%%", int64(1))
	f.Add("0 0 29 2 *", "9999999h", "99999999999999999999", int64(3))
	f.Fuzz(func(t *testing.T, schedule, duration, nodes string, offset int64) {
		now := monday.Add(time.Duration(offset % int64(100*365*24*time.Hour)))
		room, words, changes := budget.Room(now, "p", []karpenter.Budget{{Nodes: nodes, Schedule: &schedule, Duration: duration}}, karpenter.Unhealthy, 20, 1)
		if room < 0 || room > budget.Unbounded || (room == budget.Unbounded) != (words == "") {
			t.Errorf("room for %d, because %q", room, words)
		}
		testkit.Check(t, changes.IsZero() || changes.After(now), "changes at %s, and it is %s", changes, now)
	})
}
