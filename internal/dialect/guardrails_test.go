package dialect_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// defaultRails are the compiled defaults, after a change.
func defaultRails(change func(*dialect.Rails)) dialect.Rails {
	rails := dialect.Rails{
		Mode: "Enforce",
		Core: triage.Rails{
			InTreatment:   &triage.Limit{Number: 49, Percent: true},
			Unschedulable: &triage.Limit{Number: 49, Percent: true},
			Pace:          &triage.Pace{Limit: triage.Limit{Number: 10, Percent: true}, AtLeast: 2, Period: time.Minute},
			Topology:      []triage.Share{{Label: "topology.kubernetes.io/zone", Limit: triage.Limit{Number: 49, Percent: true}}},
			KeepLast:      true,
			CorrelatedFailure: &triage.CorrelatedFailure{
				Threshold: triage.Limit{Number: 50, Percent: true}, MinNodes: 3, Window: 5 * time.Minute,
				Labels: []string{
					"topology.kubernetes.io/zone", "karpenter.sh/nodepool", "eks.amazonaws.com/nodegroup", "cloud.google.com/gke-nodepool", "kubernetes.azure.com/agentpool",
					"node.kubernetes.io/instance-type",
				},
				Image: true,
			},
			MaxAttempts: &triage.MaxAttempts{Limit: 3, Window: 24 * time.Hour},
		},
		Respect: dialect.RespectAll(),
	}
	change(&rails)
	return rails
}

func TestGuardrails(t *testing.T) {
	everyStage := func(reason string) map[triage.Stage]string {
		return map[triage.Stage]string{policykind.StageTaint: reason, policykind.StageRemediate: reason, policykind.StageRepair: reason}
	}
	for _, test := range []struct {
		name  string
		given dialect.Guardrails
		want  func(*dialect.Rails)
	}{
		{"has defaults", dialect.Guardrails{}, func(*dialect.Rails) {}},
		{"holds every stage while it observes", dialect.Guardrails{Mode: "Observe"}, func(r *dialect.Rails) {
			r.Mode, r.Core.Hold = "Observe", everyStage("Guardrails cluster has mode Observe")
		}},
		{"holds every stage while it pauses", dialect.Guardrails{Mode: "Paused", Enforce: []string{"Taint"}}, func(r *dialect.Rails) {
			r.Mode, r.Core.Hold = "Paused", everyStage("Guardrails cluster has mode Paused")
		}},
		{"holds a stage that is not enforced", dialect.Guardrails{Enforce: []string{"Remediate", "Taint"}}, func(r *dialect.Rails) {
			r.Core.Hold = map[triage.Stage]string{policykind.StageRepair: "Guardrails cluster does not enforce Repair"}
		}},
		{"holds every stage if none is enforced", dialect.Guardrails{Enforce: []string{}}, func(r *dialect.Rails) {
			r.Core.Hold = map[triage.Stage]string{
				policykind.StageTaint:     "Guardrails cluster does not enforce Taint",
				policykind.StageRemediate: "Guardrails cluster does not enforce Remediate",
				policykind.StageRepair:    "Guardrails cluster does not enforce Repair",
			}
		}},
		{"holds nothing if all are enforced", dialect.Guardrails{Enforce: []string{"Taint", "Remediate", "Repair"}}, func(*dialect.Rails) {}},
		{"keeps every field", dialect.Guardrails{
			Mode: "Enforce", MaxInTreatment: "3", MaxUnschedulable: "20%",
			Pace:     dialect.Pace{Max: "25%", AtLeast: new(1), Period: "1h30m"},
			Topology: []dialect.TopologyLimit{{Key: "rack"}, {Key: "example.com/Row", Max: "1"}},
			CorrelatedFailure: dialect.CorrelatedFailure{
				Threshold: "4", MinNodes: 5, Window: "10m", Keys: []string{"image"}, LongestHold: "2h",
			},
			MaxAttempts: dialect.MaxAttempts{Limit: 1, Window: "12h"},
			Respect:     &dialect.Respect{Karpenter: true},
		}, func(r *dialect.Rails) {
			r.Core.InTreatment, r.Core.Unschedulable = &triage.Limit{Number: 3}, &triage.Limit{Number: 20, Percent: true}
			r.Core.Pace = &triage.Pace{Limit: triage.Limit{Number: 25, Percent: true}, AtLeast: 1, Period: 90 * time.Minute}
			r.Core.Topology = []triage.Share{{Label: "rack", Limit: triage.Limit{Number: 49, Percent: true}}, {Label: "example.com/Row", Limit: triage.Limit{Number: 1}}}
			r.Core.CorrelatedFailure = &triage.CorrelatedFailure{Threshold: triage.Limit{Number: 4}, MinNodes: 5, Window: 10 * time.Minute, Image: true, LongestHold: 2 * time.Hour}
			r.Core.MaxAttempts = &triage.MaxAttempts{Limit: 1, Window: 12 * time.Hour}
			r.Respect = dialect.Respect{Karpenter: true}
		}},
		{"does not raise a pace that is a number", dialect.Guardrails{Pace: dialect.Pace{Max: "1"}}, func(r *dialect.Rails) {
			r.Core.Pace = &triage.Pace{Limit: triage.Limit{Number: 1}, Period: time.Minute}
		}},
		{"does not raise a pace of nothing", dialect.Guardrails{Pace: dialect.Pace{Max: "0%", AtLeast: new(5)}}, func(r *dialect.Rails) {
			r.Core.Pace = &triage.Pace{Limit: triage.Limit{Percent: true}, Period: time.Minute}
		}},
		{"protects the last node unless both limits are 100%", dialect.Guardrails{MaxInTreatment: "100%", MaxUnschedulable: "100%"}, func(r *dialect.Rails) {
			r.Core.InTreatment, r.Core.Unschedulable, r.Core.KeepLast = &triage.Limit{Number: 100, Percent: true}, &triage.Limit{Number: 100, Percent: true}, false
		}},
		{"has no pace of 100%", dialect.Guardrails{Pace: dialect.Pace{Max: "100%"}}, func(r *dialect.Rails) { r.Core.Pace = nil }},
		{"has no limit for an empty topology", dialect.Guardrails{Topology: []dialect.TopologyLimit{}}, func(r *dialect.Rails) {
			r.Core.Topology = []triage.Share{}
		}},
		{"switches the rail without keys off", dialect.Guardrails{CorrelatedFailure: dialect.CorrelatedFailure{Keys: []string{}}}, func(r *dialect.Rails) {
			r.Core.CorrelatedFailure = nil
		}},
		{"switches the rail that cannot be exceeded off", dialect.Guardrails{CorrelatedFailure: dialect.CorrelatedFailure{Threshold: "100%"}}, func(r *dialect.Rails) {
			r.Core.CorrelatedFailure = nil
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.given.Name = "cluster"
			got, err := test.given.Rails()
			testkit.Must(t, err)
			testkit.Equal(t, "rails", defaultRails(test.want), got)
		})
	}
}

func TestDefaultRails(t *testing.T) {
	for mode, hold := range map[string]string{
		"Enforce": "",
		"Observe": "there is no Guardrails cluster, and --default-mode is Observe",
		"Paused":  "there is no Guardrails cluster, and --default-mode is Paused",
	} {
		want := defaultRails(func(r *dialect.Rails) {
			if r.Mode = mode; hold != "" {
				r.Core.Hold = map[triage.Stage]string{policykind.StageTaint: hold, policykind.StageRemediate: hold, policykind.StageRepair: hold}
			}
		})
		testkit.Equal(t, mode, want, testkit.Value(dialect.DefaultRails(mode)).Must(t))
	}
	for _, bad := range []string{"", "enforce", "Off"} {
		_, err := dialect.DefaultRails(bad)
		testkit.Fails(t, err, "--default-mode: "+`"`+bad+`": want Enforce, Observe or Paused`)
	}
}

func TestGuardrailsRefuses(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*dialect.Guardrails)
		field  string
		value  string
		says   string
	}{
		{"another name", func(g *dialect.Guardrails) { g.Name = "default" }, "metadata.name", "default", "want metadata.name: cluster"},
		{"an unknown mode", func(g *dialect.Guardrails) { g.Mode = "Pause" }, "spec.mode", "Pause", "want Enforce, Observe or Paused"},
		{"an unknown stage", func(g *dialect.Guardrails) { g.Enforce = []string{"Taint", "Drain"} }, "spec.enforce[1]", "Drain", "want Taint, Remediate or Repair"},
		{"a stage twice", func(g *dialect.Guardrails) { g.Enforce = []string{"Taint", "Taint"} }, "spec.enforce[1]", "Taint", "want each stage once"},
		{"a percentage above 100", func(g *dialect.Guardrails) { g.MaxInTreatment = "120%" }, "spec.maxInTreatment", "120%", "more than 100%"},
		{"a negative number", func(g *dialect.Guardrails) { g.MaxUnschedulable = "-1" }, "spec.maxUnschedulable", "-1", "want a number of nodes like 3"},
		{"a pace in words", func(g *dialect.Guardrails) { g.Pace.Max = "slow" }, "spec.pace.max", "slow", "want a number"},
		{"a negative minimum", func(g *dialect.Guardrails) { g.Pace.AtLeast = new(-1) }, "spec.pace.atLeast", "-1", "from 0 to 100000"},
		{"no period", func(g *dialect.Guardrails) { g.Pace.Period = "0s" }, "spec.pace.period", "0s", "want a duration from 1s to 24h"},
		{"a long period", func(g *dialect.Guardrails) { g.Pace.Period = "25h" }, "spec.pace.period", "25h", "want a duration from 1s to 24h"},
		{"a period without a unit", func(g *dialect.Guardrails) { g.Pace.Period = "60" }, "spec.pace.period", "60", "want a duration like"},
		{"a key with a value", func(g *dialect.Guardrails) { g.Topology = []dialect.TopologyLimit{{Key: "zone=a"}} }, "spec.topology[0].key", "zone=a", "without a value"},
		{"a topology without a key", func(g *dialect.Guardrails) { g.Topology = []dialect.TopologyLimit{{Max: "1"}} }, "spec.topology[0].key", "", "want the key of a label"},
		{"a key with two slashes", func(g *dialect.Guardrails) { g.Topology = []dialect.TopologyLimit{{Key: "a/b/c"}} }, "spec.topology[0].key", "a/b/c", "want the key of a label"},
		{"a key twice", func(g *dialect.Guardrails) { g.Topology = []dialect.TopologyLimit{{Key: "rack"}, {Key: "rack"}} }, "spec.topology[1].key", "rack", "one limit for each key"},
		{"an invalid share", func(g *dialect.Guardrails) { g.Topology = []dialect.TopologyLimit{{Key: "rack", Max: "half"}} }, "spec.topology[0].max", "half", "want a number"},
		{"an invalid threshold", func(g *dialect.Guardrails) { g.CorrelatedFailure.Threshold = "101%" }, "spec.correlatedFailure.threshold", "101%", "more than 100%"},
		{"a negative number of nodes", func(g *dialect.Guardrails) { g.CorrelatedFailure.MinNodes = -3 }, "spec.correlatedFailure.minNodes", "-3", "want a number of nodes from 1 to 100000"},
		{"an invalid window", func(g *dialect.Guardrails) { g.CorrelatedFailure.Window = "-5m" }, "spec.correlatedFailure.window", "-5m", "negative"},
		{"an invalid key", func(g *dialect.Guardrails) { g.CorrelatedFailure.Keys = []string{"image", "zone "} }, "spec.correlatedFailure.keys[1]", "zone ", "want the key of a label"},
		{"a duplicate key", func(g *dialect.Guardrails) { g.CorrelatedFailure.Keys = []string{"image", "image"} }, "spec.correlatedFailure.keys[1]", "image", "want each key once"},
		{"a short hold", func(g *dialect.Guardrails) { g.CorrelatedFailure.LongestHold = "30s" }, "spec.correlatedFailure.longestHold", "30s", "want a duration from 1m to 720h"},
		{"a key of a rail that is off", func(g *dialect.Guardrails) {
			g.CorrelatedFailure = dialect.CorrelatedFailure{Threshold: "100%", Keys: []string{"a b"}}
		}, "spec.correlatedFailure.keys[0]", "a b", "want the key of a label"},
		{"negative attempts", func(g *dialect.Guardrails) { g.MaxAttempts.Limit = -1 }, "spec.maxAttempts.limit", "-1", "want a number of attempts from 1 to 1000"},
		{"an invalid window of attempts", func(g *dialect.Guardrails) { g.MaxAttempts.Window = "1d" }, "spec.maxAttempts.window", "1d", "want a duration"},
	} {
		t.Run(test.name, func(t *testing.T) {
			guardrails := dialect.Guardrails{Name: "cluster"}
			test.change(&guardrails)
			rails, err := guardrails.Rails()
			var field *triage.FieldError
			testkit.Require(t, errors.As(err, &field), "error is %v, want a FieldError", err)
			if field.Field != test.field || field.Value != test.value || !strings.Contains(field.Problem, test.says) {
				t.Errorf("refused with %v, want %s: %q: %s", field, test.field, test.value, test.says)
			}
			testkit.Check(t, reflect.DeepEqual(rails, dialect.Rails{}), "invalid guardrails are returned: %+v", rails)
		})
	}
}
