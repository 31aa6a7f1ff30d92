package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// A pod can protect its node from treatments. The controller does not watch pods: a task lists the
// pods of its node before the first write of a treatment. If a pod protects the node, this becomes a
// veto, and the treatment is called off. While only this keeps the node from treatment, the engine
// lists the pods again.

const (
	// lookAgain is the pause before the engine lists the pods of a protected node again.
	lookAgain = 15 * time.Second
	// maxLooks limits how many nodes the engine looks at at once.
	maxLooks = 8
)

// protection is what a pod protects its node with.
type protection struct {
	uid       types.UID // of the node
	reason    string
	lookAt    time.Time // when to list the pods again
	isLooking bool
}

// respectsPods reports whether pods can protect their nodes.
func (l *Engine) respectsPods() bool { return l.respect != nil && l.respect.DoNotDisrupt }

// protectedBy says that a pod protects its node, empty for no pod.
func protectedBy(pod, annotation string) string {
	if pod == "" {
		return ""
	}
	return dialect.HeldByRespect("doNotDisrupt", "pod "+pod+" is annotated "+annotation, "the pod ends or the annotation is removed")
}

// IsProtected reports whether a pod protects the node of a task from the first step of a treatment.
// Then the loop decides again.
func (l *Engine) IsProtected(ctx context.Context, r *TaskResult) (bool, error) {
	if !r.respectsPods || r.Task.Step > 0 {
		return false, nil
	}
	pod, annotation, err := l.write.ProtectingPod(ctx, r.Task.Node.Name)
	switch {
	case err != nil:
		return false, r.NotWritten(err)
	case pod == "":
		return false, nil
	}
	r.protection, r.Learned, r.Outcome = protectedBy(pod, annotation), true, treat.Stale
	return true, nil
}

// noteProtection takes in that a pod protects the node of a task.
func (l *Engine) noteProtection(now time.Time, r *TaskResult) {
	if r.protection == "" {
		return
	}
	if l.protected == nil {
		l.protected = map[string]*protection{}
	}
	l.protected[r.Task.Node.Name] = &protection{uid: r.Task.Node.UID, reason: r.protection, lookAt: now.Add(lookAgain)}
}

// addProtection adds a veto for a node that a pod protects. A treatment that has begun continues.
func (l *Engine) addProtection(state *Node, facts *triage.Node) {
	if p := l.protected[state.Object.Name]; p != nil && p.uid == state.Object.UID && len(facts.Treatments) == 0 && l.respectsPods() {
		facts.Vetoes = append(facts.Vetoes, triage.Veto{Reason: p.reason, Respected: true})
	}
}

// lookAtProtected lists the pods of protected nodes again, and returns when to do so next. It forgets
// nodes that are not kept from treatment by this alone: the next task looks at their pods.
func (l *Engine) lookAtProtected(ctx context.Context, now time.Time) (due time.Time) {
	looks := 0
	for _, p := range l.protected {
		if p.isLooking {
			looks++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.protected)) {
		p, state := l.protected[name], l.nodeStates[name]
		switch isHeld := func(f triage.Reason) bool { return f.Other == p.reason }; {
		case state == nil || state.Object.UID != p.uid || !l.respectsPods() || !slices.ContainsFunc(state.findings, isHeld):
			delete(l.protected, name)
			l.Reobserve(now, name)
		case p.isLooking || looks == maxLooks:
		case now.Before(p.lookAt):
			due = times.Earliest(due, p.lookAt)
		default:
			looks++
			p.isLooking = true
			l.Do(ctx, func(ctx context.Context) func(time.Time) {
				pod, annotation, err := l.write.ProtectingPod(ctx, name)
				return func(now time.Time) { l.looked(now, name, p, protectedBy(pod, annotation), err) }
			})
		}
	}
	return due
}

// looked takes in which pod protects a node now. After an error the protection stays.
func (l *Engine) looked(now time.Time, name string, p *protection, reason string, err error) {
	p.isLooking, p.lookAt = false, now.Add(lookAgain)
	switch {
	case err != nil || reason == p.reason || l.protected[name] != p:
		return
	case reason == "":
		delete(l.protected, name)
	default:
		p.reason = reason
	}
	l.Reobserve(now, name)
}
