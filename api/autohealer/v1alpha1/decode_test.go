package v1alpha1_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

// decode reads a list as a client does.
func decode[L runtime.Object](tb rapid.TB, data []byte) L {
	tb.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		tb.Fatal(err)
	}
	object, err := runtime.Decode(serializer.NewCodecFactory(scheme).UniversalDeserializer(), data)
	if err != nil {
		tb.Fatalf("the list cannot be read: %v\n%s", err, data)
	}
	list, ok := object.(L)
	if !ok {
		tb.Fatalf("read as %T", object)
	}
	return list
}

func decodeSets(tb rapid.TB, data []byte) []v1alpha1.ConditionSet {
	tb.Helper()
	return decode[*v1alpha1.ConditionSetList](tb, data).Items
}

// listOf returns a list as the API server would.
func listOf(tb rapid.TB, kind string, items ...any) []byte {
	tb.Helper()
	data, err := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind + "List", "items": items})
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func listOfSets(tb rapid.TB, items ...any) []byte {
	tb.Helper()
	return listOf(tb, "ConditionSet", items...)
}

// full has every field.
func full() v1alpha1.ConditionSet {
	return v1alpha1.ConditionSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ConditionSet"},
		ObjectMeta: metav1.ObjectMeta{Name: "full"},
		Spec: v1alpha1.ConditionSetSpec{
			Type: "Full", Effect: "NoExecute", TaintKey: "example.com/full",
			Conditions: map[string]v1alpha1.SetCondition{"A": {Status: "True", Duration: "5m", EvenSilent: true}},
			Selector: &metav1.LabelSelector{
				MatchLabels:      map[string]string{"pool": "gpu"},
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: "In", Values: []string{"spot"}}},
			},
			MaxUnhealthy: new(intstr.FromInt32(3)),
			DryRun:       true,
		},
		Status: v1alpha1.ConditionSetStatus{
			ObservedGeneration: 1, Selected: 5, Matched: 4, Tainted: 3, HeldBack: 2, Superseded: 1, MaxTainted: new(int32(3)),
			Nodes:      []v1alpha1.MatchedNode{{Name: "n", Reason: "Tainted", Message: "it is"}},
			Conditions: []metav1.Condition{{Type: "Accepted", Status: "True", Reason: "Fine", LastTransitionTime: metav1.Unix(1, 0).Rfc3339Copy()}},
		},
	}
}

func TestDecode(t *testing.T) {
	t.Run("reads back what was written", func(t *testing.T) {
		want := full()
		got := decodeSets(t, listOfSets(t, want))[0]
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-written +read)\n%s", diff)
		}
	})

	t.Run("tells what is wrong with a spec that does not fit", func(t *testing.T) {
		set := decodeSets(t, []byte(strings.ReplaceAll(string(listOfSets(t, full())), `"maxUnhealthy":3`, `"maxUnhealthy":3000000000`)))[0]
		if got := set.Spec.Unreadable; !strings.Contains(got, "3000000000") || !strings.Contains(got, "maxUnhealthy") {
			t.Errorf("it says %q", got)
		}
		if set.Spec.TaintKey != "" {
			t.Error("half of the spec was read")
		}
		if set.Status.Matched != 4 {
			t.Error("the status was not read")
		}
	})

	t.Run("takes a status that does not fit for none", func(t *testing.T) {
		set := decodeSets(t, []byte(strings.ReplaceAll(string(listOfSets(t, full())), `"matched":4`, `"matched":-1e30`)))[0]
		if diff := cmp.Diff(v1alpha1.ConditionSetStatus{}, set.Status); diff != "" {
			t.Errorf("(-none +read)\n%s", diff)
		}
		if set.Spec.TaintKey != "example.com/full" {
			t.Error("the spec was not read")
		}
	})
}

// An invalid set must not hide the others, whatever its fields contain.
func TestAnyBadSetLeavesTheOthersReadable(t *testing.T) {
	leavesTheOthersReadable(t, full, func(t *rapid.T, items ...any) []v1alpha1.ConditionSet { return decodeSets(t, listOfSets(t, items...)) },
		func(set v1alpha1.ConditionSet) bool { return set.Spec.Unreadable == "" })
}

// leavesTheOthersReadable decodes lists with an invalid object in the middle.
func leavesTheOthersReadable[T any](t *testing.T, full func() T, read func(*rapid.T, ...any) []T, isReadable func(T) bool) {
	t.Helper()
	var unreadable, readable int
	rapid.Check(t, func(t *rapid.T) {
		var bad map[string]any
		data, err := json.Marshal(full())
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &bad); err != nil {
			t.Fatal(err)
		}
		part := rapid.SampledFrom([]string{"spec", "status"}).Draw(t, "part")
		bad[part] = spoil(t, bad[part], 0)
		list := read(t, full(), bad, full())
		for _, i := range []int{0, 2} {
			if diff := cmp.Diff(full(), list[i]); diff != "" {
				t.Fatalf("number %d suffered:\n%s", i, diff)
			}
		}
		if isReadable(list[1]) {
			readable++
		} else {
			unreadable++
		}
	})
	t.Logf("saw %d specs that do not fit and %d that do", unreadable, readable)
	if unreadable == 0 || readable == 0 {
		t.Error("one kind was never tried")
	}
}

// spoil inserts a random JSON value into another.
func spoil(t *rapid.T, value any, depth int) any {
	if depth > 0 && rapid.IntRange(0, 2).Draw(t, "stop") == 0 {
		return anyJSON(2).Draw(t, "spoiled")
	}
	switch value := value.(type) {
	case map[string]any:
		key := rapid.SampledFrom(sortedKeys(value)).Draw(t, "key")
		value[key] = spoil(t, value[key], depth+1)
		return value
	case []any:
		value[0] = spoil(t, value[0], depth+1)
		return value
	default:
		return anyJSON(2).Draw(t, "spoiled")
	}
}
