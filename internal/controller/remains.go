package controller

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/remediation"
)

// remains are what may be left of treatments of control-plane nodes that are gone:
// remediation objects, and those that may still be made. The core forgets a node that
// goes, and would let the next one have its turn; but remediators go by the name of a
// node, and may be at work on the one that has it now.
type remains struct {
	beds  map[string]bool // that have, or had, something of a control-plane node
	words string          // what is left, empty for nothing
	// keptUntil is until when something may be made that the ledger names and this
	// version does not know.
	keptUntil time.Time
}

// note has a bed looked at for as long as there is something in it.
func (r *remains) note(node string) {
	if r.beds == nil {
		r.beds = map[string]bool{}
	}
	r.beds[node] = true
}

// lookAtRemains has the nodes of the control plane wait for what is left. It comes
// before anything is sent.
func (l *loop) lookAtRemains(now time.Time) {
	var left []string
	if now.Before(l.remains.keptUntil) {
		left = append(left, "the ledger names a treatment of a control-plane node that this version does not know, which is waited for until "+l.remains.keptUntil.UTC().Format(time.RFC3339))
	}
	for _, node := range slices.Sorted(maps.Keys(l.remains.beds)) {
		b := l.beds[node]
		if b == nil || !b.granted.ControlPlane && !slices.ContainsFunc(slices.Collect(maps.Values(b.objects)), treatment.takesTurn) {
			delete(l.remains.beds, node)
			continue
		}
		p := l.patients[node]
		for _, key := range slices.Sorted(maps.Keys(b.objects)) {
			if o := b.objects[key]; o.takesTurn() && !o.isOf(p) {
				left = append(left, key+" is still there, for control-plane node "+node+", which is gone")
			}
		}
		if b.granted.ControlPlane && !b.isGrantedTo(p) {
			left = append(left, b.granted.Object+" may still be made, for control-plane node "+node+", which is gone")
		}
	}
	if words := strings.Join(left, "; "); words != l.remains.words {
		l.remains.words = words
		l.attendPlane(now)
	}
}

// attendPlane looks at every node of the control plane.
func (l *loop) attendPlane(now time.Time) {
	var plane []string
	for name, p := range l.patients {
		if remediation.IsControlPlane(p.node) {
			plane = append(plane, name)
		}
	}
	slices.Sort(plane)
	l.attend(now, plane...)
}

// takesTurn says whether other nodes of the control plane wait for the object.
func (t treatment) takesTurn() bool { return t.ControlPlane && t.Owner != remediation.Owner{} }

// isOf says whether the object is about a node that is there.
func (t treatment) isOf(p *patient) bool { return p != nil && t.IsOf(p.node) }

// isGrantedTo says whether what the ledger names is for a node that is there.
func (b *bed) isGrantedTo(p *patient) bool { return p != nil && string(p.node.UID) == b.granted.UID }

// awaitRemains returns until when something may still be made for a node that is gone,
// and gives its place back once it cannot be.
func (l *loop) awaitRemains(now time.Time, b *bed, p *patient) (due time.Time) {
	if b.granted.Object == "" || b.isGrantedTo(p) {
		return time.Time{}
	}
	if _, isClaim := claimNamed(b.granted.Object); isClaim { // the node went with it, and the page is to say so
		if !l.isUnnamedGrant(b.granted) {
			b.giveBack()
		}
		return time.Time{}
	}
	if arrives := b.sent.Add(longestWay); !b.sent.IsZero() && now.Before(arrives) {
		return arrives
	}
	b.giveBack()
	return time.Time{}
}
