package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/resourcestack/autohealer/internal/attempts"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/triage"
)

// A node that replaces a deleted node inherits its attempts: a node of the same name, or else the next
// node of its NodePool. The engine counts inherited attempts at once, and then writes them to the
// annotation of the new node. The ledger has the attempts of deleted nodes until the annotation of
// the new node names the deleted node, and those of nodes in treatment, which may be deleted while no
// process leads.

const (
	// maxLegacies limits how many deleted nodes the engine remembers, and how many entries for that
	// a snapshot of the ledger has, so that there is room for slots.
	maxLegacies = 200
	// maxInheritanceWrites limits concurrent writes of inherited attempts.
	maxInheritanceWrites = 8
)

// legacy is what a deleted node leaves to the node that replaces it.
type legacy struct {
	node, uid, pool string
	attempts        []attempts.Attempt // in the order of time
	heir            *corev1.Node       // the node that inherits, nil until there is one
	isWriting       bool
	failures        int
	notBefore       time.Time // when to try the next write
}

// inheritance holds what deleted nodes leave to others.
type inheritance struct {
	legacies  map[string]*legacy // by the UID of the deleted node
	byHeir    map[types.UID]*legacy
	treated   map[string]bool // names of nodes with attempts
	reobserve []string        // nodes that have inherited, and whose facts the core does not have yet
}

// attemptsOf returns the attempts of a node: those of its annotation, and those that it has inherited
// and that are not in its annotation yet.
func (l *Engine) attemptsOf(node *corev1.Node) attempts.Record {
	record, _ := attempts.Read(node.Annotations) // an unreadable annotation is reported
	if from := l.inheritance.byHeir[node.UID]; from != nil && record.Replaces != from.uid {
		record.Replaces, record.Attempts = from.uid, slices.Concat(from.attempts, record.Attempts)
	}
	return record
}

// addAttempts adds the attempts to the facts of a node that it has inherited and that are not in its
// annotation yet.
func (l *Engine) addAttempts(state *Node, facts *triage.Node) {
	if len(l.inheritance.byHeir) == 0 {
		return
	}
	facts.Attempts = nil
	for _, a := range l.attemptsOf(state.Object).Attempts {
		facts.Attempts = append(facts.Attempts, observe.Attempt(a))
	}
}

// noteAttempts takes in the attempts of a new version of a node. before is nil for a new node.
func (l *Engine) noteAttempts(now time.Time, state *Node, before *corev1.Node) {
	node, in := state.Object, &l.inheritance
	if before != nil && before.UID != node.UID {
		l.leaveAttempts(now, before)
	}
	record, err := attempts.Read(node.Annotations)
	l.noteUnreadableAttempts(state, err)
	switch {
	case len(record.Attempts) == 0:
		delete(in.treated, node.Name)
	case in.treated == nil:
		in.treated = map[string]bool{node.Name: true}
	default:
		in.treated[node.Name] = true
	}
	switch from := in.byHeir[node.UID]; {
	case from != nil && record.Replaces == from.uid: // the annotation has the attempts now
		in.end(from)
	case from != nil: // the annotation follows
	case (before == nil || before.UID != node.UID) && l.loaded && record.Replaces == "":
		l.inherit(node)
	}
}

// leaveAttempts takes in that a node is gone. Its attempts go to the node that replaces it.
func (l *Engine) leaveAttempts(now time.Time, node *corev1.Node) {
	in, limit := &l.inheritance, l.core.MaxAttempts()
	delete(in.treated, node.Name)
	record := l.attemptsOf(node)
	if from := in.byHeir[node.UID]; from != nil {
		in.end(from)
	}
	if tasks := l.tasks.byNode[node.Name]; tasks != nil && tasks.attempt != nil && tasks.running.Node.UID == node.UID {
		record.Attempts = append(record.Attempts, tasks.attempt.Attempt) // it may have begun
	}
	if limit == nil {
		return
	}
	left := &legacy{node: node.Name, uid: string(node.UID), pool: node.Labels[karpenter.NodePoolLabel]}
	if left.attempts = record.Within(now, limit.Window, limit.Limit).LeftBy(node.Name); len(left.attempts) > 0 {
		in.add(left)
		l.findHeir(left)
	}
}

// add adds a legacy. If there are too many, the one that ends first goes.
func (in *inheritance) add(left *legacy) {
	if in.legacies == nil {
		in.legacies, in.byHeir = map[string]*legacy{}, map[types.UID]*legacy{}
	}
	in.legacies[left.uid] = left
	if len(in.legacies) > maxLegacies {
		in.end(slices.MinFunc(slices.Collect(maps.Values(in.legacies)), (*legacy).compare))
	}
}

// end forgets a legacy.
func (in *inheritance) end(left *legacy) {
	delete(in.legacies, left.uid)
	if left.heir != nil {
		delete(in.byHeir, left.heir.UID)
	}
}

// last is when the last attempt began.
func (left *legacy) last() time.Time { return left.attempts[len(left.attempts)-1].Began }

// compare orders legacies by the time at which they end.
func (left *legacy) compare(other *legacy) int {
	return cmp.Or(left.last().Compare(other.last()), cmp.Compare(left.uid, other.uid))
}

// sorted returns the legacies in the order in which they end.
func (in *inheritance) sorted() []*legacy {
	return slices.SortedFunc(maps.Values(in.legacies), (*legacy).compare)
}

// bequeath makes a node the heir.
func (in *inheritance) bequeath(left *legacy, heir *corev1.Node) {
	left.heir = heir
	in.byHeir[heir.UID] = left
	in.reobserve = append(in.reobserve, heir.Name)
}

// inherit lets a new node inherit from a deleted node of its name, or else from the first deleted node
// of its NodePool that no node has replaced.
func (l *Engine) inherit(node *corev1.Node) {
	var first *legacy
	for _, left := range l.inheritance.sorted() {
		switch {
		case left.heir != nil:
		case left.node == node.Name:
			l.inheritance.bequeath(left, node)
			return
		case first == nil && left.pool != "" && left.pool == node.Labels[karpenter.NodePoolLabel]:
			first = left
		}
	}
	if first != nil {
		l.inheritance.bequeath(first, node)
	}
}

// findHeir looks for the node that replaces a deleted node among the existing nodes. A replacement may
// join before the deleted node is gone: it is younger than the last attempt.
func (l *Engine) findHeir(left *legacy) {
	var heir *corev1.Node
	since := left.last().Truncate(time.Second)
	for _, state := range l.nodeStates {
		node := state.Object
		isYounger := node.Name == left.node || left.pool != "" && node.Labels[karpenter.NodePoolLabel] == left.pool && !node.CreationTimestamp.Time.Before(since)
		if string(node.UID) == left.uid || !isYounger || l.attemptsOf(node).Replaces != "" {
			continue
		}
		isFirst := func() bool {
			return cmp.Or(node.CreationTimestamp.Compare(heir.CreationTimestamp.Time), cmp.Compare(node.Name, heir.Name)) < 0
		}
		if heir == nil || node.Name == left.node || heir.Name != left.node && isFirst() {
			heir = node
		}
	}
	if heir != nil {
		l.inheritance.bequeath(left, heir)
	}
}

// takeHeirs adds the facts of nodes that have inherited attempts.
func (l *Engine) takeHeirs(now time.Time, facts []triage.Node) []triage.Node {
	in := &l.inheritance
	for _, name := range in.reobserve {
		state := l.nodeStates[name]
		if state == nil {
			continue
		}
		if at := slices.IndexFunc(facts, func(known triage.Node) bool { return known.Name == name }); at >= 0 {
			l.addAttempts(state, &facts[at])
			continue
		}
		known, _ := observe.Node(state.Object) // an unreadable record has been reported
		l.addFacts(now, state, &known)
		facts = append(facts, known)
	}
	in.reobserve = nil
	return facts
}

// restoreAttempts takes in the attempts of nodes that are gone, as the previous leader has stored them.
func (w *ledgerWriter) restoreAttempts(now time.Time) {
	l := w.engine
	uids, replaced := map[string]bool{}, map[string]bool{}
	for _, state := range l.nodeStates {
		uids[string(state.Object.UID)] = true
		if record := l.attemptsOf(state.Object); record.Replaces != "" {
			replaced[record.Replaces] = true
		}
	}
	var restored []string
	for _, e := range w.restored {
		e, is := e.(ledger.Attempts)
		if !is || uids[e.UID] || replaced[e.UID] {
			continue
		}
		record, err := attempts.Parse(e.Record)
		if err != nil { // a later version may have written it
			l.Logger().Warn("attempts in the ledger unreadable", "node", e.Node, "err", err)
			continue
		}
		limit := l.core.MaxAttempts()
		if limit == nil {
			continue
		}
		left := &legacy{node: e.Node, uid: e.UID, pool: e.NodePool, attempts: record.Within(now, limit.Window, limit.Limit).LeftBy(e.Node)}
		if len(left.attempts) == 0 {
			continue
		}
		l.inheritance.add(left)
		l.findHeir(left)
		restored = append(restored, e.Node)
	}
	if len(restored) > 0 {
		l.Logger().Info("attempts of deleted nodes restored", "nodes", restored)
	}
	l.core.Observe(now, l.takeHeirs(now, nil)...)
}

// writeInherited writes inherited attempts to the annotations of their nodes, and returns when to
// try again.
func (l *Engine) writeInherited(ctx context.Context, now time.Time) (due time.Time) {
	in, writes := &l.inheritance, 0
	if len(in.legacies) == 0 {
		return time.Time{}
	}
	limit := l.core.MaxAttempts()
	for _, left := range in.sorted() {
		switch {
		case limit == nil || !left.last().Add(limit.Window).After(now):
			in.end(left)
		case left.isWriting:
			writes++
		case left.heir == nil || writes == maxInheritanceWrites || l.nodeStates[left.heir.Name].attemptsProblem != "":
		case now.Before(left.notBefore):
			due = times.Earliest(due, left.notBefore)
		default:
			writes++
			left.isWriting = true
			heir := l.nodeStates[left.heir.Name].Object // a heartbeat may have changed its version
			record := l.attemptsOf(heir).Within(now, limit.Window, limit.Limit).Encode()
			l.Do(ctx, func(ctx context.Context) func(time.Time) {
				version, err := l.write.RecordAttempts(ctx, heir, heir.ResourceVersion, record)
				return func(now time.Time) { l.inherited(now, left, heir, version, record, err) }
			})
		}
	}
	return due
}

// takeInherited takes in a node whose attempts were written. A user may have removed them since, so
// the legacy ends even if the loop knows a later version of the node.
func (l *Engine) takeInherited(now time.Time, written *corev1.Node) {
	record, _ := attempts.Read(written.Annotations) // this process wrote them
	if from := l.inheritance.byHeir[written.UID]; from != nil && from.uid == record.Replaces {
		l.inheritance.end(from)
	}
	l.NodeRead(now, written)
	l.Reobserve(now, written.Name)
}

// inherited takes in the result of writing inherited attempts.
func (l *Engine) inherited(now time.Time, left *legacy, heir *corev1.Node, version, record string, err error) {
	left.isWriting = false
	if err == nil {
		l.cfg.Logger.Info("attempts inherited", "node", heir.Name, "from", left.node)
		l.takeInherited(now, withAttempts(heir, version, record))
		return
	}
	left.failures++
	left.notBefore = now.Add(l.RetryDelay(left.failures))
	if l.LogsRetry(now) {
		l.cfg.Logger.Warn("attempts not inherited yet", "node", heir.Name, "from", left.node, "retryAt", left.notBefore.String(), "err", err)
	}
}

// entry returns the entry of the ledger with the attempts of a deleted node.
func (left *legacy) entry() ledger.Entry {
	return ledger.Attempts{Node: left.node, UID: left.uid, NodePool: left.pool, Record: attempts.Record{Attempts: left.attempts}.Encode()}
}

// attemptsInTreatment returns the entries of the ledger with the attempts of nodes in treatment. slots are
// the other entries of the snapshot.
func (l *Engine) attemptsInTreatment(now time.Time, slots []ledger.Entry) (entries []ledger.Entry) {
	limit := l.core.MaxAttempts()
	if limit == nil {
		return nil
	}
	begins := map[string]ledger.ObjectWrite{} // the attempt is recorded on the node only after the ledger has the slot
	for _, e := range slots {
		if write, is := e.(ledger.ObjectWrite); is && write.Step == 0 {
			begins[write.Node] = write
		}
	}
	names := maps.Clone(l.inheritance.treated)
	if names == nil {
		names = map[string]bool{}
	}
	for name := range begins {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		state, tasks := l.nodeStates[name], l.tasks.byNode[name]
		if state == nil || tasks == nil {
			continue
		}
		record := l.attemptsOf(state.Object)
		if write, is := begins[name]; is && write.UID == string(state.Object.UID) && l.core.IsNewAttempt(name, triage.RuleID(write.Rule)) {
			record.Attempts = append(record.Attempts, attempts.Attempt{Policy: write.Rule, Began: now.UTC()})
		}
		if record = record.Within(now, limit.Window, limit.Limit); len(record.Attempts) > 0 {
			entries = append(entries, ledger.Attempts{Node: name, UID: string(state.Object.UID), NodePool: state.Object.Labels[karpenter.NodePoolLabel], Record: record.Encode()})
		}
	}
	return entries
}

// requestAttempts adds the attempts of deleted nodes, and of nodes in treatment, to the next snapshot as
// far as there is room. It reports whether the stored snapshot lacks those of a deleted node. Without
// room this leader still counts them; only the next leader does not know them.
func (w *ledgerWriter) requestAttempts(now time.Time, room *ledger.Room) (isNews bool) {
	slots := w.entries()
	w.attempts = nil
	take := func(e ledger.Entry) bool {
		if len(w.attempts) == maxLegacies || !room.Take(e) {
			return false
		}
		w.attempts = append(w.attempts, e)
		return true
	}
	for _, left := range w.engine.inheritance.sorted() {
		if e := left.entry(); take(e) && !slices.Contains(w.stored, e) {
			isNews = true
		}
	}
	for _, e := range w.engine.attemptsInTreatment(now, slots) {
		take(e)
	}
	return isNews
}

// lacksAttempts reports whether the stored snapshot lacks the attempts of a deleted node.
func (w *ledgerWriter) lacksAttempts() bool {
	for _, left := range w.engine.inheritance.legacies {
		if !slices.Contains(w.stored, left.entry()) {
			return true
		}
	}
	return false
}

// misleads reports whether the next leader would let a node inherit attempts again.
func (l *Engine) misleads(e ledger.Attempts) bool {
	state := l.nodeStates[e.Node]
	return l.inheritance.legacies[e.UID] == nil && (state == nil || string(state.Object.UID) != e.UID)
}

// needsAttempts reports whether the next leader may still need the attempts in a stored entry.
func (l *Engine) needsAttempts(e ledger.Attempts) bool {
	if l.inheritance.legacies[e.UID] != nil {
		return true
	}
	state := l.nodeStates[e.Node]
	return state != nil && string(state.Object.UID) == e.UID && l.tasks.byNode[e.Node] != nil
}
