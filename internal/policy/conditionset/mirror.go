package conditionset

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/mirror"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// The mirror of a set in a ConfigMap is the ConditionSet that shows it.
type (
	mirrors       = mirror.Mirrors[v1alpha1.ConditionSetSpec, v1alpha1.ConditionSetStatus]
	setMirror     = mirror.Mirror[v1alpha1.ConditionSetSpec, v1alpha1.ConditionSetStatus]
	mirrorContent = mirror.Content[v1alpha1.ConditionSetSpec, v1alpha1.ConditionSetStatus]
	wantedMirror  = mirror.Wanted[v1alpha1.ConditionSetSpec, v1alpha1.ConditionSetStatus]
)

func newMirrors(writer *treat.Writer) *mirrors {
	return mirror.New[v1alpha1.ConditionSetSpec, v1alpha1.ConditionSetStatus](writer, "ConditionSet", "conditionsets", "ConfigMap")
}

// maxMirrorName leaves room for a number in the name of an object, which has up to 253 characters.
const maxMirrorName = 240

// mirrorName returns the name of the mirror of a set in a ConfigMap: "policies/sets.yaml/BadDisk"
// becomes "configmap-policies-sets-yaml-baddisk".
func mirrorName(set string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower("configmap-"+set))
	return strings.TrimRight(name[:min(len(name), maxMirrorName)], "-")
}

// addMirror adds the mirror of a set in a ConfigMap. If two sets have the same name for their
// mirrors, the second gets a number.
func (p *Policy) addMirror(wanted map[string]wantedMirror, taken map[string]bool, pol *conditionSet, counts triage.Population) {
	name := mirrorName(pol.set.Name)
	for n := 2; wanted[name].Content != nil; n++ {
		name = fmt.Sprintf("%s-%d", mirrorName(pol.set.Name), n)
	}
	if user := p.known[name]; user != nil {
		taken[pol.set.Name] = true
		p.reportNameTaken(pol, name)
		return
	}
	of := p.mirrors.Get(name)
	wanted[name] = wantedMirror{
		IsStale: pol.status.Stale || of.Stored().Selected != status.Count(counts.Selected),
		Content: func(of *setMirror) *mirrorContent {
			spec := *pol.set.Spec.DeepCopy()
			if spec.MaxUnhealthy == nil { // the default of the schema
				spec.MaxUnhealthy = new(intstr.FromString(dialect.DefaultMaxUnhealthy))
			}
			return &mirrorContent{Spec: spec, Status: p.statusFor(pol, counts, of.Generation(), of.Stored().Conditions)}
		},
	}
	pol.status.Stale = false
}

// markMirrorsStale records that the current version of a ConfigMap may be accepted or rejected
// now.
func (p *Policy) markMirrorsStale(now time.Time, s *configMapSet) {
	if s.inForce == nil {
		return
	}
	for _, set := range s.inForce.Sets {
		if pol := p.known[set.Name]; pol != nil {
			pol.status.Stale = true
		}
	}
	p.host.Statuses().Schedule(now)
}

// configMapProblem says why the current version of the ConfigMap of a set is not in force, empty
// if it is.
func (p *Policy) configMapProblem(pol *conditionSet) string {
	source := configmaps.ConfigMapOf(pol.set)
	if source == nil || p.configMaps.known[source.Name] == nil || p.configMaps.known[source.Name].refused == nil {
		return ""
	}
	problem := p.configMaps.known[source.Name].problem
	message := problem.Error()
	if lines, isOfLines := errors.AsType[configmaps.LineErrors](problem); isOfLines {
		message = lines.Within(treat.MaxNote)
	}
	return "the current version of ConfigMap " + source.Name + " is not accepted: " + message
}

// reportNameTaken reports once that a user's ConditionSet has the name of a mirror.
func (p *Policy) reportNameTaken(pol *conditionSet, name string) {
	if p.nameTaken[pol.set.Name] {
		return
	}
	p.cfg.Logger.Warn("set without a mirror", "set", pol.set.Name, "conditionSet", name)
	p.cfg.Event(treat.Event{
		Policy: treat.AboutSet(pol.set), EventReason: treat.MirrorNameTaken,
		Message: fmt.Sprintf("no ConditionSet shows the status of set %s, because a user's ConditionSet has the name %s: give that one another name", pol.set.Name, name),
	})
}
