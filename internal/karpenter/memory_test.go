package karpenter_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// claims returns the bodies of this many realistic claims: with the sixty instance types
// that Karpenter requests, and with managedFields.
func claims(tb testing.TB, count int) [][]byte {
	tb.Helper()
	body, err := yaml.ToJSON([]byte(wholeClaim))
	testkit.Must(tb, err)
	var claim unstructured.Unstructured
	testkit.Must(tb, json.Unmarshal(body, &claim.Object))
	var types []any
	for i := range 60 {
		types = append(types, fmt.Sprintf("m%d.%dxlarge", i%8, i))
	}
	testkit.Must(tb, unstructured.SetNestedSlice(claim.Object, []any{map[string]any{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": types}}, "spec", "requirements"))
	bodies := make([][]byte, count)
	for i := range bodies {
		claim.SetName(fmt.Sprintf("default-%05d", i))
		testkit.Must(tb, unstructured.SetNestedField(claim.Object, "kwok://"+claim.GetName(), "status", "providerID"))
		if bodies[i], err = json.Marshal(claim.Object); err != nil {
			tb.Fatal(err)
		}
	}
	return bodies
}

// held decodes every body and returns how many bytes of heap each result uses.
func held[T any](t *testing.T, bodies [][]byte, read func([]byte, *T) error) int {
	t.Helper()
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := heap()
	kept := make([]T, len(bodies))
	for i, body := range bodies {
		testkit.Must(t, read(body, &kept[i]))
	}
	after := heap()
	runtime.KeepAlive(kept)
	runtime.KeepAlive(bodies)
	return int(after-before) / len(bodies)
}

// Ten thousand claims must not use a hundred megabytes.
func TestAClaimHoldsFewKilobytes(t *testing.T) {
	bodies := claims(t, 300)
	typed := held(t, bodies, func(body []byte, into *karpenter.NodeClaim) error { return json.Unmarshal(body, into) })
	loose := held(t, bodies, func(body []byte, into *unstructured.Unstructured) error { return json.Unmarshal(body, &into.Object) })
	t.Logf("a claim of %d bytes holds %d bytes, and %d as an unstructured one", len(bodies[0]), typed, loose)
	if typed > 4<<10 || typed*3 > loose {
		t.Errorf("a claim holds %d bytes, and %d as an unstructured one; want at most 4096, and a third", typed, loose)
	}
	allocations := testing.AllocsPerRun(100, func() {
		var claim karpenter.NodeClaim
		testkit.Must(t, json.Unmarshal(bodies[0], &claim))
	})
	testkit.Check(t, allocations <= 160, "reading a claim allocates %.0f times, want at most 160", allocations)
}

// BenchmarkDecodeClaim decodes the same claim repeatedly: one op is one decode of about
// 3 KB of JSON.
func BenchmarkDecodeClaim(b *testing.B) {
	body := claims(b, 1)[0]
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		var claim karpenter.NodeClaim
		testkit.Must(b, json.Unmarshal(body, &claim))
	}
}
