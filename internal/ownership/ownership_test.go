package ownership_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testkit"
)

var second = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

func set(name string) ownership.Rule {
	return ownership.Rule{Kind: policykind.ConditionSet, Name: name}
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?`)
		moment := rapid.Custom(func(t *rapid.T) time.Time {
			return second.Add(time.Duration(rapid.Int64Range(0, 1<<50).Draw(t, "after")))
		})
		var want ownership.Record
		for range rapid.IntRange(0, 3).Draw(t, "taints") {
			want.Taints = append(want.Taints, ownership.Taint{
				Rule: set(name.Draw(t, "rule")), Key: name.Draw(t, "key"),
				Effect: rapid.SampledFrom([]corev1.TaintEffect{"NoExecute", "NoSchedule", "PreferNoSchedule"}).Draw(t, "effect"),
				Added:  moment.Draw(t, "added"),
			})
		}
		for range rapid.IntRange(0, 3).Draw(t, "memories") {
			want.Starts = append(want.Starts, ownership.RememberedStart{
				Rule: set(name.Draw(t, "rule")), Condition: name.Draw(t, "condition"), Since: moment.Draw(t, "since"), Transition: moment.Draw(t, "transition"),
			})
		}
		want.Fence = rapid.SampledFrom([]string{"", "one"}).Draw(t, "fence")
		want.Initialized = rapid.Bool().Draw(t, "initialized")
		text, some := want.Encode()
		if empty := len(want.Taints)+len(want.Starts) == 0 && want.Fence == "" && !want.Initialized; some == empty {
			t.Fatalf("Encode returned %v for %+v", some, want)
		}
		annotations := map[string]string{"other": "one"}
		if some {
			annotations[ownership.Annotation] = text
		}
		got := testkit.Value(ownership.Read(annotations)).Must(t)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("read (-want +got):\n%s", diff)
		}
	})
}

func TestReadRefusesInvalidRecords(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":         "hello",
		"an invalid rule": `{"taints":[{"rule":7,"key":"k","effect":"NoExecute","added":"2026-11-15T12:00:00Z"}]}`,
		"an invalid time": `{"taints":[{"rule":"ConditionSet/x","key":"k","effect":"NoExecute","added":"yesterday"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ownership.Read(map[string]string{ownership.Annotation: text})
			if err == nil || !strings.Contains(err.Error(), ownership.Annotation) {
				t.Errorf("error is %v, want one that names the annotation", err)
			}
			testkit.Equal(t, "an invalid record was used", ownership.Record{}, got)
		})
	}
}

func TestOwns(t *testing.T) {
	note := ownership.Record{Taints: []ownership.Taint{{Rule: set("a"), Key: "k", Effect: corev1.TaintEffectNoExecute, Added: second}}}
	reserved := []string{
		"node.kubernetes.io/unreachable", "node.kubernetes.io/out-of-service", "node-role.kubernetes.io/control-plane",
		"node.cloudprovider.kubernetes.io/shutdown", "example.k8s.io/a", "karpenter.sh/disrupted", "medik8s.io/remediation", "ToBeDeletedByClusterAutoscaler",
	}
	for _, key := range reserved {
		note.Taints = append(note.Taints, ownership.Taint{Rule: set("a"), Key: key, Effect: corev1.TaintEffectNoExecute, Added: second})
	}
	at := func(when time.Time) *metav1.Time { whole := metav1.NewTime(when); return &whole }
	for _, test := range []struct {
		name  string
		taint corev1.Taint
		ours  bool
	}{
		{"the taint that was placed", note.Taints[0].Taint(), true},
		{"the same time in another time zone", corev1.Taint{Key: "k", Effect: "NoExecute", TimeAdded: at(second.In(time.FixedZone("", 3600)))}, true},
		{"another key", corev1.Taint{Key: "l", Effect: "NoExecute", TimeAdded: at(second)}, false},
		{"another effect", corev1.Taint{Key: "k", Effect: "NoSchedule", TimeAdded: at(second)}, false},
		{"an equal taint placed later", corev1.Taint{Key: "k", Effect: "NoExecute", TimeAdded: at(second.Add(time.Second))}, false},
		{"an equal taint without a time", corev1.Taint{Key: "k", Effect: "NoExecute"}, false},
		{"a taint with a value", corev1.Taint{Key: "k", Value: "v", Effect: "NoExecute", TimeAdded: at(second)}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := note.Owns(test.taint); got != test.ours {
				t.Errorf("ours: %v, want %v", got, test.ours)
			}
		})
	}
	for _, taint := range note.Taints[1:] {
		t.Run("the reserved key "+taint.Key, func(t *testing.T) {
			testkit.Check(t, !note.Owns(taint.Taint()), "a taint with a reserved key counts as ours")
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add(`{"taints":[{"rule":"ConditionSet/x","key":"k","effect":"NoExecute","added":"2026-11-15T12:00:00Z"}],"fence":"f"}`)
	f.Add(`{"memories":[{"rule":"Repair/x","condition":"c","since":"2026-11-15T12:00:00Z"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		note, err := ownership.Read(map[string]string{ownership.Annotation: text})
		if err != nil {
			return
		}
		again, some := note.Encode()
		if !some {
			return
		}
		back, err := ownership.Read(map[string]string{ownership.Annotation: again})
		testkit.Require(t, err == nil, "what was read from %q cannot be read again: %v", text, err)
		if diff := cmp.Diff(note, back); diff != "" {
			t.Fatalf("read again (-first +second):\n%s", diff)
		}
	})
}
