package history

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const attemptsAnnotation = "autohealer.resourcestack.com/attempts"

// attempt is a treatment in the annotation of a node.
type attempt struct {
	Policy string
	Began  time.Time
	Node   string // the node that was treated, empty for this node
}

// attemptsOn returns the attempts in the annotation of a node. An annotation that cannot be read has
// none.
func attemptsOn(object *unstructured.Unstructured) []attempt {
	var form struct{ Attempts []attempt }
	if json.Unmarshal([]byte(object.GetAnnotations()[attemptsAnnotation]), &form) != nil {
		return nil
	}
	return form.Attempts
}

// changesAttempts reports whether a write changed the attempts of a node.
func changesAttempts(before, after *unstructured.Unstructured) bool {
	return before.GetAnnotations()[attemptsAnnotation] != after.GetAnnotations()[attemptsAnnotation]
}

// within counts the attempts that lie within the window of the rails.
func (l *rails) within(attempts []attempt, now time.Time) (count int) {
	for _, a := range attempts {
		count += one(a.Began.Add(l.window).After(now))
	}
	return count
}

// tooOften judges how often a node was treated. We record an attempt before its first step.
func (r *replay) tooOften(n *node, view *rails) string {
	recorded := attemptsOn(n.object)
	count := view.within(recorded, r.at.Time)
	r.notePeak("maxAttempts", count)
	switch {
	case !slices.ContainsFunc(recorded, func(a attempt) bool { return a.Node == "" }):
		return "no attempt is recorded on the node"
	case count > view.attempts:
		return fmt.Sprintf("this is attempt %d within %s, maxAttempts is %d", count, view.window, view.attempts)
	}
	return ""
}

// judgeAttempts judges a write of ours that changed the attempts of a node: attempts that still count
// must not get lost.
func (r *replay) judgeAttempts(n *node, after *unstructured.Unstructured) {
	views := r.railViews()
	if !changesAttempts(n.object, after) || len(views) == 0 {
		return
	}
	kept := attemptsOn(after)
	for _, view := range views {
		lost := slices.DeleteFunc(slices.Clone(attemptsOn(n.object)), func(a attempt) bool {
			return !a.Began.Add(view.window).After(r.at.Time.Add(r.cfg.Delay)) || slices.Contains(kept, a)
		})
		if len(lost) == 0 || view.attempts == 0 || view.within(kept, r.at.Time) >= view.attempts {
			return
		}
	}
	r.addCheckViolation(RailIgnored, n.name, "", "we removed an attempt that still counts from the annotation of the node")
}
