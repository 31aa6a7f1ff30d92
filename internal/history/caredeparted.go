package history

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// replacedWithin is for how long the place of a node is kept that was taken away.
	replacedWithin = 15 * time.Minute
	// handedOver is by how much longer that may be if one leader has it from another.
	handedOver = 5 * time.Minute
)

// loss is a node that went while an object was there by which it was to go for good.
type loss struct {
	check    string
	checkUID types.UID
	object   types.UID
	began    time.Time // when the object was made
	meant    time.Time // since when it meant the node to go
	gone     time.Time
	untold   time.Time // when the object went, zero while it is there
	// unsure says that it may have been counted or not: nobody may have known in time
	// that the node was to go, the health check did not select it, or another
	// controller was at work.
	unsure bool
}

// arrival is a node that has become ready.
type arrival struct{ came, ready time.Time }

// heedMeaning takes in whether an object means its node to go. If that is said when the
// node is gone already, it may be too late.
func (r *replay) heedMeaning(o *remedy) {
	was := !o.meant.IsZero()
	since(&o.meant, o.deletesNode, r.at.Time)
	if n := r.nodes[o.node]; o.deletesNode && !was && o.check != "" && (n == nil || !o.isOf(n)) {
		r.ward.lost = append(r.ward.lost, &loss{
			check: o.check, checkUID: o.checkUID, object: o.uid, began: o.seen, meant: r.at.Time, gone: r.at.Time, unsure: true,
		})
	}
}

// lose takes in that a node is gone, before it is taken out of the numbers.
func (r *replay) lose(n *node) {
	told := map[string]bool{}
	for _, o := range r.ward.onNode[n.name] {
		if o.check == "" || !o.deletesNode || !o.isOf(n) || told[o.check] {
			continue
		}
		told[o.check] = true
		h := r.check(o.check)
		r.ward.lost = append(r.ward.lost, &loss{
			check: o.check, checkUID: o.checkUID, object: o.uid, began: o.seen, meant: o.meant, gone: r.at.Time,
			unsure: r.mayBePeer() || !n.care(o.check).selected || !h.regimen.follows(),
		})
	}
}

// loseTrace takes in that an object is gone.
func (r *replay) loseTrace(o *remedy) {
	for _, l := range r.ward.lost {
		if l.object == o.uid {
			l.untold = r.at.Time
			l.unsure = l.unsure || r.at.Time.Sub(l.meant) < r.cfg.Lag
		}
	}
}

// heedArrival takes in that a node becomes ready.
func (r *replay) heedArrival(n *node, after facts) {
	const ready = "Ready"
	if n.conditions[ready].status != "True" && after.conditions[ready].status == "True" {
		r.ward.arrivals = append(r.ward.arrivals, arrival{n.came, r.at.Time})
	}
}

// surelyGone counts the nodes that a health check must count although they are gone:
// those that are left when every node that has come since replaces one, if it can.
func (r *replay) surelyGone(h *healthCheck) (gone int) {
	replaces := map[int]*loss{} // by arrival
	for _, l := range r.ward.lost {
		isKept := r.at.Time.Before(l.gone.Add(replacedWithin - r.cfg.Lag))
		if l.check != h.name || l.unsure || !isKept || !settled(l.gone, r.horizon()) || h.object == nil || h.object.GetUID() != l.checkUID {
			continue
		}
		gone += one(!r.findReplacement(l, replaces, map[int]bool{}))
	}
	return gone
}

// findReplacement gives a node that is gone a replacement, and the one that had it
// before another, if that can be.
func (r *replay) findReplacement(l *loss, replaces map[int]*loss, tried map[int]bool) bool {
	for i, a := range r.ward.arrivals {
		if tried[i] || !a.came.After(l.began.Add(-r.cfg.Lag)) || !a.ready.After(l.meant.Add(-r.cfg.Lag)) {
			continue
		}
		tried[i] = true
		if other := replaces[i]; other == nil || r.findReplacement(other, replaces, tried) {
			replaces[i] = l
			return true
		}
	}
	return false
}

// maybeGone counts those that it may count.
func (r *replay) maybeGone(h *healthCheck) (gone int) {
	for _, l := range r.ward.lost {
		gone += one(l.check == h.name && r.isMaybeKept(l, 0))
	}
	return gone
}

// wasMaybeGone says whether there may have been one within some time.
func (r *replay) wasMaybeGone(h *healthCheck, within time.Duration) bool {
	return slices.ContainsFunc(r.ward.lost, func(l *loss) bool { return l.check == h.name && r.isMaybeKept(l, within) })
}

// isMaybeKept says whether the place of a node may be kept, or may have been within some
// time: for as long as the object is there a leader that is new may find it.
func (r *replay) isMaybeKept(l *loss, within time.Duration) bool {
	until := last(l.gone, l.untold).Add(replacedWithin + handedOver + within + r.cfg.Lag)
	return l.untold.IsZero() || r.at.Time.Before(until)
}

// ailing says what those are that a gate counts.
func ailing(gone int) string {
	if gone > 0 {
		return "sick, in treatment or not replaced yet"
	}
	return "sick or in treatment"
}
