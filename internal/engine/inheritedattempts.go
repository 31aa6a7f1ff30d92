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
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/observe"
	"github.com/resourcestack/autohealer/internal/times"
	"github.com/resourcestack/autohealer/internal/triage"
)

// A node that replaces a deleted node inherits its attempts: a node of the same name, or else the next
// node of its pool. The engine counts inherited attempts at once, and then writes them to the
// annotation of the new node. The ledger has the attempts of deleted nodes until the annotation of
// the new node names the deleted node, and those of nodes in treatment, which may be deleted while no
// process leads.

const (
	// maxDeletedNodes limits how many deleted nodes the engine remembers, and how many entries for that
	// a snapshot of the ledger has, so that there is room for slots.
	maxDeletedNodes = 200
	// maxInheritanceWrites limits concurrent writes of inherited attempts.
	maxInheritanceWrites = 8
)

// deletedAttempts are the attempts of a deleted node, which its replacement inherits.
type deletedAttempts struct {
	node, uid, pool string
	attempts        []attempts.Attempt // in the order of time
	replacement     *corev1.Node       // the node that inherits, nil until there is one
	isWriting       bool
	failures        int
	notBefore       time.Time // when to try the next write
}

// inheritance holds the attempts of deleted nodes until their replacements have them.
type inheritance struct {
	deleted       map[string]*deletedAttempts // by the UID of the deleted node
	byReplacement map[types.UID]*deletedAttempts
	treated       map[string]bool // names of nodes with attempts
	reobserve     []string        // nodes that have inherited, and whose facts the core does not have yet
}

// attemptsOf returns the attempts of a node: those of its annotation, and those that it has inherited
// and that are not in its annotation yet.
func (l *Engine) attemptsOf(node *corev1.Node) attempts.Record {
	record, _ := attempts.Read(node.Annotations) // an unreadable annotation is reported
	if from := l.inheritance.byReplacement[node.UID]; from != nil && record.Replaces != from.uid {
		record.Replaces, record.Attempts = from.uid, slices.Concat(from.attempts, record.Attempts)
	}
	return record
}

// addAttempts adds the attempts to the facts of a node that it has inherited and that are not in its
// annotation yet. The attempt that a running task begins is no fact yet: until the treatment has begun,
// it would count as another one if the node became unhealthy within the same second.
func (l *Engine) addAttempts(state *Node, facts *triage.Node) {
	begins := l.tasks.byNode[state.Object.Name].attemptOn(state.Object)
	if len(l.inheritance.byReplacement) == 0 && begins == nil {
		return
	}
	facts.Attempts = nil
	for _, a := range l.attemptsOf(state.Object).Attempts {
		if begins == nil || !begins.is(a) {
			facts.Attempts = append(facts.Attempts, observe.Attempt(a))
		}
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
	switch from := in.byReplacement[node.UID]; {
	case from != nil && record.Replaces == from.uid: // the annotation has the attempts now
		in.end(from)
	case from != nil: // the annotation follows
	case l.loaded && record.Replaces == "" && mayReplace(before, node):
		l.inherit(node)
	}
}

// mayReplace says whether a version of a node is the first that may replace a deleted node. before is
// nil for a new node. Some nodes get the label of their pool after they have joined.
func mayReplace(before, node *corev1.Node) bool {
	isNew := before == nil || before.UID != node.UID
	return isNew || observe.PoolOf(before) == "" && observe.PoolOf(node) != ""
}

// leaveAttempts takes in that a node is gone. Its attempts go to the node that replaces it.
func (l *Engine) leaveAttempts(now time.Time, node *corev1.Node) {
	in, limit := &l.inheritance, l.core.MaxAttempts()
	delete(in.treated, node.Name)
	record := l.attemptsOf(node)
	if from := in.byReplacement[node.UID]; from != nil {
		in.end(from)
	}
	if begins := l.tasks.byNode[node.Name].attemptOn(node); begins != nil && !begins.isIn(record) {
		record.Attempts = append(record.Attempts, begins.Attempt) // it may have begun
	}
	if limit == nil {
		return
	}
	left := &deletedAttempts{node: node.Name, uid: string(node.UID), pool: observe.PoolOf(node)}
	if left.attempts = record.Within(now, limit.Window, limit.Limit).LeftBy(node.Name); len(left.attempts) > 0 {
		in.add(left)
		l.findReplacement(left)
	}
}

// add adds the attempts of a deleted node. If there are too many, it drops those that end first.
func (in *inheritance) add(left *deletedAttempts) {
	if in.deleted == nil {
		in.deleted, in.byReplacement = map[string]*deletedAttempts{}, map[types.UID]*deletedAttempts{}
	}
	in.deleted[left.uid] = left
	if len(in.deleted) > maxDeletedNodes {
		in.end(slices.MinFunc(slices.Collect(maps.Values(in.deleted)), (*deletedAttempts).compare))
	}
}

// end forgets the attempts of a deleted node.
func (in *inheritance) end(left *deletedAttempts) {
	delete(in.deleted, left.uid)
	if left.replacement != nil {
		delete(in.byReplacement, left.replacement.UID)
	}
}

// last is when the last attempt began.
func (left *deletedAttempts) last() time.Time { return left.attempts[len(left.attempts)-1].Began }

// compare orders deleted nodes by the time at which their attempts end.
func (left *deletedAttempts) compare(other *deletedAttempts) int {
	return cmp.Or(left.last().Compare(other.last()), cmp.Compare(left.uid, other.uid))
}

// sorted returns the deleted nodes in the order in which their attempts end.
func (in *inheritance) sorted() []*deletedAttempts {
	return slices.SortedFunc(maps.Values(in.deleted), (*deletedAttempts).compare)
}

// setReplacement makes a node the replacement of a deleted node, which inherits its attempts.
func (in *inheritance) setReplacement(left *deletedAttempts, replacement *corev1.Node) {
	left.replacement = replacement
	in.byReplacement[replacement.UID] = left
	in.reobserve = append(in.reobserve, replacement.Name)
}

// inherit lets a new node inherit from a deleted node of its name, or else from the first deleted node
// of its pool that no node has replaced.
func (l *Engine) inherit(node *corev1.Node) {
	var first *deletedAttempts
	for _, left := range l.inheritance.sorted() {
		switch {
		case left.replacement != nil:
		case left.node == node.Name:
			l.inheritance.setReplacement(left, node)
			return
		case first == nil && left.pool != "" && left.pool == observe.PoolOf(node):
			first = left
		}
	}
	if first != nil {
		l.inheritance.setReplacement(first, node)
	}
}

// findReplacement looks for the node that replaces a deleted node among the existing nodes. A
// replacement may join before the deleted node is gone: it is younger than the last attempt.
func (l *Engine) findReplacement(left *deletedAttempts) {
	var replacement *corev1.Node
	since := left.last().Truncate(time.Second)
	for _, state := range l.nodeStates {
		node := state.Object
		isYounger := node.Name == left.node || left.pool != "" && observe.PoolOf(node) == left.pool && !node.CreationTimestamp.Time.Before(since)
		if string(node.UID) == left.uid || !isYounger || l.attemptsOf(node).Replaces != "" {
			continue
		}
		isFirst := func() bool {
			return cmp.Or(node.CreationTimestamp.Compare(replacement.CreationTimestamp.Time), cmp.Compare(node.Name, replacement.Name)) < 0
		}
		if replacement == nil || node.Name == left.node || replacement.Name != left.node && isFirst() {
			replacement = node
		}
	}
	if replacement != nil {
		l.inheritance.setReplacement(left, replacement)
	}
}

// takeReplacements adds the facts of nodes that have inherited attempts.
func (l *Engine) takeReplacements(now time.Time, facts []triage.Node) []triage.Node {
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
	limit := l.core.MaxAttempts()
	if limit == nil {
		return
	}
	exists, replaced := map[string]bool{}, map[string]bool{} // by UID
	for _, state := range l.nodeStates {
		exists[string(state.Object.UID)] = true
		replaced[l.attemptsOf(state.Object).Replaces] = true
	}
	var gone []*deletedAttempts
	for _, e := range w.restored {
		e, is := e.(ledger.Attempts)
		if !is || exists[e.UID] {
			continue
		}
		record, err := attempts.Parse(e.Record)
		if err != nil { // a later version may have written it
			l.Logger().Warn("attempts in the ledger unreadable", "node", e.Node, "err", err)
			continue
		}
		replaced[record.Replaces] = true // this deleted node had inherited, so one node inherits from both
		left := record.Within(now, limit.Window, limit.Limit).LeftBy(e.Node)
		gone = append(gone, &deletedAttempts{node: e.Node, uid: e.UID, pool: e.NodePool, attempts: left})
	}
	var restored []string
	for _, left := range gone {
		if replaced[left.uid] || len(left.attempts) == 0 {
			continue
		}
		l.inheritance.add(left)
		l.findReplacement(left)
		restored = append(restored, left.node)
	}
	if len(restored) > 0 {
		l.Logger().Info("attempts of deleted nodes restored", "nodes", restored)
	}
	l.core.Observe(now, l.takeReplacements(now, nil)...)
}

// writeInherited writes inherited attempts to the annotations of their nodes, and returns when to
// try again.
func (l *Engine) writeInherited(ctx context.Context, now time.Time) (due time.Time) {
	in, writes := &l.inheritance, 0
	if len(in.deleted) == 0 {
		return time.Time{}
	}
	limit := l.core.MaxAttempts()
	for _, left := range in.sorted() {
		switch {
		case limit == nil || !left.last().Add(limit.Window).After(now):
			in.end(left)
		case left.isWriting:
			writes++
		case left.replacement == nil || writes == maxInheritanceWrites || l.nodeStates[left.replacement.Name].attemptsProblem != "":
		case now.Before(left.notBefore):
			due = times.Earliest(due, left.notBefore)
		default:
			writes++
			left.isWriting = true
			replacement := l.nodeStates[left.replacement.Name].Object // a heartbeat may have changed its version
			record := l.attemptsOf(replacement).Within(now, limit.Window, limit.Limit).Encode()
			l.Do(ctx, func(ctx context.Context) func(time.Time) {
				version, err := l.write.RecordAttempts(ctx, replacement, replacement.ResourceVersion, record)
				return func(now time.Time) { l.inherited(now, left, replacement, version, record, err) }
			})
		}
	}
	return due
}

// takeInherited takes in a node whose attempts were written. A user may have removed them since, so
// the inheritance ends even if the loop knows a later version of the node.
func (l *Engine) takeInherited(now time.Time, written *corev1.Node) {
	record, _ := attempts.Read(written.Annotations) // this process wrote them
	if from := l.inheritance.byReplacement[written.UID]; from != nil && from.uid == record.Replaces {
		l.inheritance.end(from)
	}
	l.NodeRead(now, written)
	l.Reobserve(now, written.Name)
}

// inherited takes in the result of writing inherited attempts.
func (l *Engine) inherited(now time.Time, left *deletedAttempts, replacement *corev1.Node, version, record string, err error) {
	left.isWriting = false
	if err == nil {
		l.cfg.Logger.Info("attempts inherited", "node", replacement.Name, "from", left.node)
		l.takeInherited(now, withAttempts(replacement, version, record))
		return
	}
	left.failures++
	left.notBefore = now.Add(l.RetryDelay(left.failures))
	if l.LogsRetry(now) {
		l.cfg.Logger.Warn("attempts not inherited yet", "node", replacement.Name, "from", left.node, "retryAt", left.notBefore.String(), "err", err)
	}
}

// entry returns the entry of the ledger with the attempts of a deleted node.
func (left *deletedAttempts) entry() ledger.Entry {
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
		write, is := begins[name]
		switch begins := tasks.attemptOn(state.Object); {
		case begins != nil && !begins.isIn(record):
			record.Attempts = append(record.Attempts, begins.Attempt)
		case begins != nil, tasks.recorded: // the record has it
		case is && write.UID == string(state.Object.UID) && l.core.IsNewAttempt(name, triage.RuleID(write.Rule)):
			record.Attempts = append(record.Attempts, attempts.Attempt{Policy: write.Rule, Began: now.UTC()})
		}
		if record = record.Within(now, limit.Window, limit.Limit); len(record.Attempts) > 0 {
			entries = append(entries, ledger.Attempts{Node: name, UID: string(state.Object.UID), NodePool: observe.PoolOf(state.Object), Record: record.Encode()})
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
		if len(w.attempts) == maxDeletedNodes || !room.Take(e) {
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
	for _, left := range w.engine.inheritance.deleted {
		if !slices.Contains(w.stored, left.entry()) {
			return true
		}
	}
	return false
}

// misleads reports whether the next leader would let a node inherit attempts again.
func (l *Engine) misleads(e ledger.Attempts) bool {
	state := l.nodeStates[e.Node]
	return l.inheritance.deleted[e.UID] == nil && (state == nil || string(state.Object.UID) != e.UID)
}

// needsAttempts reports whether the next leader may still need the attempts in a stored entry.
func (l *Engine) needsAttempts(e ledger.Attempts) bool {
	if l.inheritance.deleted[e.UID] != nil {
		return true
	}
	state := l.nodeStates[e.Node]
	return state != nil && string(state.Object.UID) == e.UID && l.tasks.byNode[e.Node] != nil
}
