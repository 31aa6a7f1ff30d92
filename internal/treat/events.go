package treat

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/text"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// eventsPerSecond and eventsAtOnce limit the load of Events on the API server, so
	// that they do not delay the taint writes during a storm.
	eventsPerSecond = 20
	eventsAtOnce    = 10
	// maxWaiting is how many Events may wait to be written: those of a storm over 2,000
	// nodes.
	maxWaiting = 4096
	// concurrentEvents limits concurrent writes of Events.
	concurrentEvents = 4
	// eventAttempts is how often the writer tries to write an Event, and eventTimeout the
	// timeout of each attempt.
	eventAttempts = 5
	eventTimeout  = 5 * time.Second

	// MaxNote is the maximum length of an Event's note; longer notes are cut.
	// maxEventName is how much of an object's name fits into the name of an Event.
	MaxNote      = 1024
	maxEventName = 200

	// eventNamespace is the namespace of Events about cluster-scoped objects.
	eventNamespace = metav1.NamespaceDefault
)

// Event says what happened to a node or for which policy.
type Event struct {
	Node   *corev1.Node            // nil if the Event is about the policy only
	Policy *corev1.ObjectReference // nil if the policy no longer exists
	// Related are further objects: the NodeClaim of the node and its NodePool.
	Related []*corev1.ObjectReference

	EventReason EventReason
	Reason      triage.Reason // the reason of the rule, if there is one
	Message     string        // additional text
	// Failure, if not empty, says why the action failed.
	Failure string
	// ID, if not empty, is the same for the same finding after a restart. MayExist says that
	// a previous process may have stored the Event; then it is not stored again.
	ID       string
	MayExist bool
	// AfterStart says that this leader has just started. It reports again what it finds, and
	// the previous leader may have reported that.
	AfterStart bool
}

// AboutSet returns a reference to the object that contains a ConditionSet; nil for a nil set.
func AboutSet(set *v1alpha1.ConditionSet) *corev1.ObjectReference {
	if set == nil {
		return nil
	}
	if source := configmaps.ConfigMapOf(set); source != nil {
		return source
	}
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "ConditionSet",
		Name: set.Name, UID: set.UID, ResourceVersion: set.ResourceVersion,
	}
}

// AboutConfigMap returns a reference to a ConfigMap that contains sets.
func AboutConfigMap(m *corev1.ConfigMap) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "ConfigMap",
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
	}
}

// AboutCheck returns a reference to a NodeHealthCheck.
func AboutCheck(check metav1.Object) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: remediation.CheckAPIVersion, Kind: remediation.CheckKind,
		Name: check.GetName(), UID: check.GetUID(), ResourceVersion: check.GetResourceVersion(),
	}
}

// AboutPolicy returns a reference to a RepairPolicy.
func AboutPolicy(policy *v1alpha1.RepairPolicy) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: remediation.PolicyAPIVersion, Kind: remediation.PolicyKind,
		Name: policy.Name, UID: policy.UID, ResourceVersion: policy.ResourceVersion,
	}
}

// AboutGuardrails returns a reference to the Guardrails.
func AboutGuardrails(guardrails *v1alpha1.Guardrails) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "Guardrails",
		Name: guardrails.Name, UID: guardrails.UID, ResourceVersion: guardrails.ResourceVersion,
	}
}

// AboutNodePool returns a reference to a Karpenter NodePool.
func AboutNodePool(pool metav1.Object) *corev1.ObjectReference {
	return aboutKarpenter("NodePool", pool)
}

// AboutNodeClaim returns a reference to a Karpenter NodeClaim.
func AboutNodeClaim(claim metav1.Object) *corev1.ObjectReference {
	return aboutKarpenter("NodeClaim", claim)
}

func aboutKarpenter(kind string, object metav1.Object) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: karpenter.GroupVersion.String(), Kind: kind,
		Name: object.GetName(), UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
	}
}

// EventWriter writes one Event per change. client-go's recorder merges Events of one
// object and reason into a series with the first note, and does not count dropped Events.
// EventWriter keeps the note of every change, or counts it as dropped.
type EventWriter struct {
	client   client.Client
	instance string
	count    func(outcome string)
	// waiting has a queue for each writer. Events with the same ID are in one queue, because the
	// writer stores the first of them under a name that depends on the ID.
	waiting [concurrentEvents]chan queuedEvent
	pace    *rate.Limiter
	queued  atomic.Uint64
}

// NewEventWriter returns a writer; Start starts it. instance is the name of this process.
// The writer calls count with the outcome of every Event: written, refused, or dropped
// because too many Events were waiting.
func NewEventWriter(c client.Client, instance string, count func(outcome string)) *EventWriter {
	w := &EventWriter{
		client: c, instance: text.Shorten(instance, 128, "..."), count: count,
		pace: rate.NewLimiter(eventsPerSecond, eventsAtOnce),
	}
	for i := range w.waiting {
		w.waiting[i] = make(chan queuedEvent, maxWaiting/concurrentEvents)
	}
	return w
}

// NeedLeaderElection returns false. Every replica runs a writer, but only the leader has
// Events.
func (w *EventWriter) NeedLeaderElection() bool { return false }

// Start writes Events until ctx ends, several at once, so that a slow API server delays them less.
func (w *EventWriter) Start(ctx context.Context) error {
	var writers sync.WaitGroup
	for _, waiting := range w.waiting {
		writers.Go(func() { w.writeAll(ctx, waiting) })
	}
	writers.Wait()
	for _, waiting := range w.waiting {
		for range len(waiting) {
			w.count("dropped")
		}
	}
	return nil
}

func (w *EventWriter) writeAll(ctx context.Context, waiting <-chan queuedEvent) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-waiting:
			if w.pace.Wait(ctx) != nil { // ctx has ended
				w.count("dropped")
				continue
			}
			w.count(w.write(ctx, event))
		}
	}
}

// queuedEvent is an Event to write. If an Event of its name exists that is not this one, it
// gets the other name.
type queuedEvent struct {
	*eventsv1.Event
	otherName string
}

// write tries several times to create the Event. An existing Event counts as written: the
// answer of an earlier attempt was lost, or a previous process has written it.
func (w *EventWriter) write(ctx context.Context, event queuedEvent) (outcome string) {
	for try := 1; ; try++ {
		err := w.create(ctx, event.Event)
		if apierrors.IsAlreadyExists(err) && event.otherName != "" { // rarely a lost answer: then it is there twice
			event.Name, event.otherName = event.otherName, ""
			err = w.create(ctx, event.Event)
		}
		switch {
		case err == nil || apierrors.IsAlreadyExists(err):
			return "written"
		case try == eventAttempts || Classify(err) == Refused:
			return "refused"
		}
		select {
		case <-time.After(time.Duration(try) * time.Second):
		case <-ctx.Done():
			return "refused"
		}
	}
}

func (w *EventWriter) create(ctx context.Context, event *eventsv1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	return w.client.Create(ctx, event.DeepCopy())
}

// Write queues an Event about the node, and one with the same note about the policy. It
// never blocks.
func (w *EventWriter) Write(e Event) {
	what := eventKinds[e.EventReason]
	event := eventsv1.Event{
		EventTime:           metav1.NowMicro(),
		ReportingController: FieldManager,
		ReportingInstance:   w.instance,
		Type:                what.Type,
		Action:              what.Action,
		Reason:              what.Reason,
	}
	if e.EventReason == TaintsChanged && e.Node != nil {
		event.Action, event.Reason = "RemoveTaint", e.Reason.Code.String()
		if code := e.Reason.Code; code == triage.Tainted || code == triage.FellBack {
			event.Type, event.Action = corev1.EventTypeWarning, "PlaceTaint"
		}
	}
	if e.Failure != "" {
		event.Type = corev1.EventTypeWarning
		if event.Action != validateAction { // as Kubernetes names them: FailedMount, FailedCreate
			event.Reason = "Failed" + event.Action
		}
	}
	policy := policykind.Describe(e.Reason.Rule)
	note := e.note(event.EventTime.Time, policy, policy+": ")
	if e.ID == "" && e.reportsState() {
		e.ID, e.MayExist = event.Reason+" "+text.WithoutDigits(note), e.AfterStart
	}
	others := e.Related
	if e.Policy != nil {
		others = append([]*corev1.ObjectReference{e.Policy}, others...)
	}
	var node *corev1.ObjectReference
	if e.Node != nil {
		node = &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.Node.Name, UID: e.Node.UID}
		w.queue(event, e, *node, e.Policy, note)
		note = e.Node.Name + ": " + note
	}
	for _, other := range others {
		w.queue(event, e, *other, node, e.noteFor(other, event.EventTime.Time, note))
	}
}

// noteFor returns the note of an Event about a policy or another object. A policy need not
// name itself. A ConfigMap must, because it may have several sets.
func (e Event) noteFor(object *corev1.ObjectReference, now time.Time, note string) string {
	policy, prefix := "this policy", ""
	switch field, pool := policykind.PoolField(e.Reason.Rule); {
	case object == e.Policy && object.Kind != "ConfigMap":
	case object.Kind == "NodePool" && object.Name == pool:
		policy, prefix = field, field+": "
	default:
		return note
	}
	if e.Node == nil {
		return e.note(now, policy, prefix)
	}
	return e.Node.Name + ": " + e.note(now, policy, prefix)
}

// note joins the parts of the note: first what happened, last the failure. The prefix
// precedes the reason of the policy.
func (e Event) note(now time.Time, policy, prefix string) string {
	var parts []string
	if e.Message != "" {
		parts = append(parts, e.Message)
	}
	// A deleted rule does not explain a failure.
	if e.Reason.Rule != (triage.RuleID{}) && (e.Failure == "" || e.Reason.Code != triage.RuleGone) {
		parts = append(parts, e.because(now, policy, prefix))
	}
	if e.Failure != "" {
		parts = append(parts, e.Failure)
	}
	return strings.Join(parts, ": ")
}

// because returns the reason of the policy. A repair says for how long the policy tolerates
// the condition.
func (e Event) because(now time.Time, policy, prefix string) string {
	r := e.Reason
	if r.Condition == "" || r.Eligible.IsZero() || r.FromCreation || e.Failure != "" {
		return prefix + r.Sentence()
	}
	tolerated := fmt.Sprintf("tolerated %s by %s", text.Duration(r.Eligible.Sub(r.Since)), policy)
	switch e.EventReason {
	case NodeRepaired:
		return fmt.Sprintf("%s for %s, %s", r.ConditionText(), text.Duration(now.Sub(r.Since).Truncate(time.Second)), tolerated)
	case RepairPending:
		return fmt.Sprintf("%s since %s, %s: the node is repaired at %s if it stays so", r.ConditionText(), r.Since.UTC().Format(time.RFC3339), tolerated, r.Eligible.UTC().Format(time.RFC3339))
	default:
		return prefix + r.Sentence()
	}
}

func (w *EventWriter) queue(event eventsv1.Event, e Event, about corev1.ObjectReference, related *corev1.ObjectReference, note string) {
	if event.Namespace = about.Namespace; event.Namespace == "" {
		event.Namespace = eventNamespace
	}
	base := strings.TrimRight(about.Name[:min(len(about.Name), maxEventName)], ".-")
	serial := w.queued.Add(1)
	event.Name = fmt.Sprintf("%s.%x.%x", base, event.EventTime.UnixNano(), serial)
	queued, writer := queuedEvent{Event: &event}, serial
	if e.ID != "" {
		if !e.MayExist {
			queued.otherName = event.Name
		}
		hash := fnv.New64a()
		fmt.Fprintf(hash, "%s %s %s", about.Kind, about.UID, e.ID)
		writer = hash.Sum64()
		event.Name = fmt.Sprintf("%s.%016x", base, writer)
	}
	event.Regarding, event.Related, event.Note = about, related, text.Shorten(note, MaxNote, "...")
	select {
	case w.waiting[writer%concurrentEvents] <- queued:
	default:
		w.count("dropped")
	}
}
