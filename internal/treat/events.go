package treat

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
)

const (
	// eventsPerSecond and eventsAtOnce keep the Events of a storm from taking
	// the API server from the taints that they tell of.
	eventsPerSecond = 20
	eventsAtOnce    = 10
	// maxWaiting is how many Events may wait to be written: those of a storm
	// over 2,000 nodes.
	maxWaiting = 4096
	// eventTries is how often the writing of one is tried, and eventTimeout how
	// long each time.
	eventTries   = 5
	eventTimeout = 5 * time.Second

	// MaxNote is how long the note of an Event may be: what is longer is cut. And
	// maxEventName is how much of an object's name fits into the name of an Event.
	MaxNote      = 1024
	maxEventName = 200

	// eventNamespace is where Events about objects without a namespace stand.
	eventNamespace = metav1.NamespaceDefault
)

// Event is word of something that happened, to those who look at a node or at
// the policy that it happened for.
type Event struct {
	Node   *corev1.Node            // nil when it is about the policy alone
	Policy *corev1.ObjectReference // nil when there is none any more
	// Related is what else it is about: the machine of the node, and the pool of that.
	Related []*corev1.ObjectReference

	EventReason EventReason
	Reason      triage.Reason // why, if a rule speaks
	Message     string        // what else there is to say
	// Failure, when not empty, says why it could not be done.
	Failure string
}

// EventReason is what an announcement is about.
type EventReason uint8

// The happenings.
const (
	// TaintsChanged: the reason's code tells which way. About a policy alone it is
	// never good news: there must be trouble with it.
	TaintsChanged EventReason = iota
	// Accepted: what people wrote is in force.
	Accepted

	// The others are of health checks, and have the names that they have always had.

	// DetectedUnhealthy: a node shows a condition that the check calls sick.
	DetectedUnhealthy
	// RemediationCreated: a remediator was asked to bring the node back.
	RemediationCreated
	// RemediationSkipped: a remediator should be asked, but something stands against it.
	RemediationSkipped
	// RemediationRemoved: the request was taken back.
	RemediationRemoved
	// NoTemplateLeft: every remediation was tried, and the node is sick still.
	NoTemplateLeft
	// InvalidNodeLabel: somebody marked the node in a way that means nothing.
	InvalidNodeLabel
	// Disabled: the check cannot be followed. Enabled: it can, again.
	Disabled
	Enabled
	// StormRecoveryStarted: too many nodes are sick at once. When it is over, a
	// cooldown starts, and after that has ended remediation goes on.
	StormRecoveryStarted
	StormRecoveryCooldownStarted
	StormRecoveryEnded

	// AgentSilent: nobody looks at the node any more. AgentHeard: somebody does, again.
	AgentSilent
	AgentHeard

	// RepairPending: a node is sick, and is replaced if it stays so.
	RepairPending
	// RepairBlocked: it is to be replaced, but something stands against it.
	RepairBlocked
	// NodeRepaired: it was given up, and its provider replaces it.
	NodeRepaired
	// NodeSpared: it was about to be given up, and is not to be any more.
	TerminationCancelled
	// ReadyTimeoutRecovery: it was given up because it has never become ready.
	ReadyTimeoutRecovery
	// PoolHeld: nodes of a pool do not become ready, one after the other. PoolReleased:
	// one has, or the pool has changed.
	PoolHeld
	PoolReleased

	// The others are of repair blocks on NodePools.

	// RepairBlockRefused: what stands there cannot be followed.
	RepairBlockRefused
	// RepairSchemaLost: the API server does not know the block any more, and hides it.
	RepairSchemaLost
	// RepairBlockVanished: the block is gone, and nobody has removed it.
	RepairBlockVanished
	// RepairBlockRestored: what was lost was put back.
	RepairBlockRestored

	// OwnershipUnclear: a node has a taint with the key and effect of a set, and no record
	// proves that the controller placed it.
	OwnershipUnclear
)

// judge is the action of whoever has not touched anything.
const judge = "Judge"

// happenings are what Events say of them: the reason that programs look for, the
// action, and whether somebody should be alarmed.
var happenings = [...]struct{ reason, action, kind string }{
	TaintsChanged:                {"", judge, corev1.EventTypeNormal},
	Accepted:                     {"Accepted", judge, corev1.EventTypeNormal},
	DetectedUnhealthy:            {"DetectedUnhealthy", judge, corev1.EventTypeNormal},
	RemediationCreated:           {"RemediationCreated", "CreateRemediation", corev1.EventTypeNormal},
	RemediationSkipped:           {"RemediationSkipped", "CreateRemediation", corev1.EventTypeWarning},
	RemediationRemoved:           {"RemediationRemoved", "RemoveRemediation", corev1.EventTypeNormal},
	NoTemplateLeft:               {"NoTemplateLeft", judge, corev1.EventTypeWarning},
	InvalidNodeLabel:             {"InvalidNodeLabel", judge, corev1.EventTypeWarning},
	Disabled:                     {"Disabled", judge, corev1.EventTypeWarning},
	Enabled:                      {"Enabled", judge, corev1.EventTypeNormal},
	StormRecoveryStarted:         {"StormRecoveryStarted", judge, corev1.EventTypeWarning},
	StormRecoveryCooldownStarted: {"StormRecoveryCooldownStarted", judge, corev1.EventTypeWarning},
	StormRecoveryEnded:           {"StormRecoveryEnded", judge, corev1.EventTypeNormal},
	AgentSilent:                  {triage.AgentSilent, judge, corev1.EventTypeWarning},
	AgentHeard:                   {"AgentHeard", judge, corev1.EventTypeNormal},
	RepairPending:                {"NodeRepairPending", judge, corev1.EventTypeNormal},
	RepairBlocked:                {"NodeRepairBlocked", "DeleteNodeClaim", corev1.EventTypeWarning},
	NodeRepaired:                 {"NodeRepair", "DeleteNodeClaim", corev1.EventTypeWarning},
	TerminationCancelled:         {"NodeRepairCalledOff", "SpareNodeClaim", corev1.EventTypeNormal},
	ReadyTimeoutRecovery:         {"NodeReadyTimeoutRecovery", "DeleteNodeClaim", corev1.EventTypeWarning},
	PoolHeld:                     {"NodePoolHeld", judge, corev1.EventTypeWarning},
	PoolReleased:                 {"NodePoolReleased", judge, corev1.EventTypeNormal},
	RepairBlockRefused:           {"RepairBlockRefused", judge, corev1.EventTypeWarning},
	RepairSchemaLost:             {"RepairSchemaLost", judge, corev1.EventTypeWarning},
	RepairBlockVanished:          {"RepairBlockVanished", judge, corev1.EventTypeWarning},
	RepairBlockRestored:          {"RepairBlockRestored", "Restore", corev1.EventTypeNormal},
	OwnershipUnclear:             {"OwnershipUnclear", judge, corev1.EventTypeWarning},
}

// AboutSet refers to a ConditionSet, where it is written; nil to none.
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

// AboutConfigMap refers to a ConfigMap in which sets are written.
func AboutConfigMap(m *corev1.ConfigMap) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "ConfigMap",
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
	}
}

// AboutCheck refers to a NodeHealthCheck.
func AboutCheck(check metav1.Object) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: remediation.CheckAPIVersion, Kind: remediation.CheckKind,
		Name: check.GetName(), UID: check.GetUID(), ResourceVersion: check.GetResourceVersion(),
	}
}

// AboutPolicy refers to a RepairPolicy.
func AboutPolicy(policy *v1alpha1.RepairPolicy) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: remediation.PolicyAPIVersion, Kind: remediation.PolicyKind,
		Name: policy.Name, UID: policy.UID, ResourceVersion: policy.ResourceVersion,
	}
}

// AboutNodePool refers to a NodePool of Karpenter.
func AboutNodePool(pool metav1.Object) *corev1.ObjectReference {
	return aboutKarpenter("NodePool", pool)
}

// AboutNodeClaim refers to a NodeClaim of Karpenter.
func AboutNodeClaim(claim metav1.Object) *corev1.ObjectReference {
	return aboutKarpenter("NodeClaim", claim)
}

func aboutKarpenter(kind string, object metav1.Object) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: karpenter.GroupVersion.String(), Kind: kind,
		Name: object.GetName(), UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
	}
}

// EventWriter writes Events, one for every change. The library that comes with
// the client folds Events of one object and reason into a series and keeps only
// the first one's words, and what it drops it does not count; here every change
// is told in its own words, or counted.
type EventWriter struct {
	client   client.Client
	instance string
	count    func(outcome string)
	waiting  chan *eventsv1.Event
	pace     *rate.Limiter
	told     atomic.Uint64
}

// NewEventWriter returns an announcer, which writes once it is started. Instance
// is the name of this process, and count is told what became of every Event:
// written, refused, or dropped because too many waited.
func NewEventWriter(c client.Client, instance string, count func(outcome string)) *EventWriter {
	return &EventWriter{
		client: c, instance: shorten(instance, 128), count: count,
		waiting: make(chan *eventsv1.Event, maxWaiting),
		pace:    rate.NewLimiter(eventsPerSecond, eventsAtOnce),
	}
}

// NeedLeaderElection says that Events are written by every replica: only the
// one that leads has any.
func (a *EventWriter) NeedLeaderElection() bool { return false }

// Start writes Events until ctx ends.
func (a *EventWriter) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			for range len(a.waiting) {
				a.count("dropped")
			}
			return nil
		case event := <-a.waiting:
			if a.pace.Wait(ctx) != nil { // ctx has ended
				a.count("dropped")
				continue
			}
			a.count(a.write(ctx, event))
		}
	}
}

// write tries a few times. An Event that is there already is one whose answer
// was lost.
func (a *EventWriter) write(ctx context.Context, event *eventsv1.Event) (outcome string) {
	for try := 1; ; try++ {
		err := a.create(ctx, event)
		switch {
		case err == nil || apierrors.IsAlreadyExists(err):
			return "written"
		case try == eventTries || Classify(err) == Refused:
			return "refused"
		}
		select {
		case <-time.After(time.Duration(try) * time.Second):
		case <-ctx.Done():
			return "refused"
		}
	}
}

func (a *EventWriter) create(ctx context.Context, event *eventsv1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	return a.client.Create(ctx, event.DeepCopy())
}

// Write queues an Event about the node, and one with the same words about the
// policy. It never blocks.
func (a *EventWriter) Write(word Event) {
	what := happenings[word.EventReason]
	event := eventsv1.Event{
		EventTime:           metav1.NowMicro(),
		ReportingController: FieldManager,
		ReportingInstance:   a.instance,
		Type:                what.kind,
		Action:              what.action,
		Reason:              what.reason,
	}
	if word.EventReason == TaintsChanged && word.Node != nil {
		event.Action, event.Reason = "RemoveTaint", word.Reason.Code.String()
		if code := word.Reason.Code; code == triage.Tainted || code == triage.FellBack {
			event.Type, event.Action = corev1.EventTypeWarning, "PlaceTaint"
		}
	}
	if word.Failure != "" {
		event.Type, event.Reason = corev1.EventTypeWarning, "Trouble"
	}
	note := word.note()
	others := word.Related
	if word.Policy != nil {
		others = append([]*corev1.ObjectReference{word.Policy}, others...)
	}
	var node *corev1.ObjectReference
	if word.Node != nil {
		node = &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: word.Node.Name, UID: word.Node.UID}
		a.queue(event, *node, word.Policy, note)
		note = word.Node.Name + ": " + note
	}
	for _, other := range others {
		a.queue(event, *other, node, note)
	}
}

// note tells all that there is to say, what happened first and trouble last.
func (word Event) note() string {
	var parts []string
	if word.Message != "" {
		parts = append(parts, word.Message)
	}
	// That a rule is gone is no reason for trouble.
	if word.Reason.Rule != (triage.RuleID{}) && (word.Failure == "" || word.Reason.Code != triage.RuleGone) {
		parts = append(parts, word.Reason.String())
	}
	if word.Failure != "" {
		parts = append(parts, word.Failure)
	}
	return strings.Join(parts, ": ")
}

func (a *EventWriter) queue(event eventsv1.Event, about corev1.ObjectReference, related *corev1.ObjectReference, note string) {
	if event.Namespace = about.Namespace; event.Namespace == "" {
		event.Namespace = eventNamespace
	}
	event.Name = fmt.Sprintf("%s.%x.%x", strings.TrimRight(about.Name[:min(len(about.Name), maxEventName)], ".-"), event.EventTime.UnixNano(), a.told.Add(1))
	event.Regarding, event.Related, event.Note = about, related, shorten(note, MaxNote)
	select {
	case a.waiting <- &event:
	default:
		a.count("dropped")
	}
}

// shorten cuts a text between two characters, and not within one.
func shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const ellipsis = "..."
	cut := limit - len(ellipsis)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + ellipsis
}
