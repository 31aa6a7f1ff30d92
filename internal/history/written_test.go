package history

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

const written = "map/sets.yaml/W"

// pin writes a ConfigMap that names the wanted key, or an invalid one.
func (s *story) pin(kind watch.EventType, key string) {
	object := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "map", "namespace": "here", "uid": "map"}, "data": map[string]any{"key": key},
	}}
	s.record(kind, ConfigMapsResource, admin, object)
}

func readPinned(object *unstructured.Unstructured) (map[string]v1alpha1.ConditionSetSpec, bool) {
	key, _, _ := unstructured.NestedString(object.Object, "data", "key")
	if key == "" {
		return nil, object.GetName() != "map"
	}
	return map[string]v1alpha1.ConditionSetSpec{written: {
		Type: "W", Effect: corev1.TaintEffectNoSchedule, TaintKey: key, Conditions: map[string]v1alpha1.SetCondition{"Wet": {Status: "True"}},
	}}, true
}

func TestSetsInConfigMapsAreJudged(t *testing.T) {
	const one, other = "example.com/one:NoSchedule", "example.com/other:NoSchedule"
	cfg := testConfig
	cfg.Written = readPinned
	unfinished := cfg
	unfinished.Unfinished = true
	// wet is a story with the set's taint on a node.
	wet := func(t *testing.T) *story {
		t.Helper()
		s := fiveNodes(t)
		s.pin(watch.Added, "example.com/one")
		return s.tell("condition n1 Wet=True; we n1 +" + written + "=" + one + "; pass 1m")
	}
	t.Run("an invalid version changes nothing", func(t *testing.T) {
		s := wet(t)
		s.pin(watch.Modified, "")
		s.pass(time.Minute)
		s.hasNoViolation(cfg)
		s.we("n1", s.remove(written, one))
		s.caught(unfinished, Unjustified)
	})
	t.Run("the next valid version does", func(t *testing.T) {
		s := wet(t)
		s.pin(watch.Modified, "example.com/other")
		s.we("n1", s.remove(written, one), s.place(written, other))
		s.hasNoViolation(cfg)
	})
	t.Run("a taint that no set asks for any longer has to go", func(t *testing.T) {
		s := wet(t)
		s.pin(watch.Modified, "example.com/other")
		s.pass(time.Minute)
		s.caught(cfg, WrongEnd)
	})
	t.Run("so has the taint of a deleted set", func(t *testing.T) {
		s := wet(t)
		s.pin(watch.Deleted, "example.com/one")
		s.pass(time.Minute)
		s.caught(cfg, WrongEnd)
		s.we("n1", s.remove(written, one))
		s.hasNoViolation(cfg)
	})
	t.Run("no taint may be placed that only an invalid version asks for", func(t *testing.T) {
		s := fiveNodes(t)
		s.pin(watch.Added, "")
		s.condition("n1", "Wet=True")
		s.we("n1", s.place(written, one))
		s.caught(unfinished, Unjustified)
	})
}
