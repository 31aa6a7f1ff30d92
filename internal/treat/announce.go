package treat

import (
	"context"
	"fmt"
	"strings"
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

// Announcement is word of a change to those who look at a node or at a set.
type Announcement struct {
	Node   *corev1.Node           // nil when it is about the set alone
	Set    *v1alpha1.ConditionSet // nil when there is none any more
	Reason triage.Reason
	// Trouble, when not empty, says why the change could not be made.
	Trouble string

	// ConfigMap, when not nil, is what it is about in place of a node or a set. If
	// there is no Trouble with it, Word is what there is to say.
	ConfigMap *corev1.ConfigMap
	Word      string
}

// Announcer writes Events, one for every change. The library that comes with
// the client folds Events of one object and reason into a series and keeps only
// the first one's words, and what it drops it does not count; here every change
// is told in its own words, or counted.
type Announcer struct {
	client   client.Client
	instance string
	count    func(outcome string)
	waiting  chan *eventsv1.Event
	pace     *rate.Limiter
	told     uint64
}

// NewAnnouncer returns an announcer, which writes once it is started. Instance
// is the name of this process, and count is told what became of every Event:
// written, refused, or dropped because too many waited.
func NewAnnouncer(c client.Client, instance string, count func(outcome string)) *Announcer {
	return &Announcer{
		client: c, instance: shorten(instance, 128), count: count,
		waiting: make(chan *eventsv1.Event, maxWaiting),
		pace:    rate.NewLimiter(eventsPerSecond, eventsAtOnce),
	}
}

// NeedLeaderElection says that Events are written by every replica: only the
// one that leads has any.
func (a *Announcer) NeedLeaderElection() bool { return false }

// Start writes Events until ctx ends.
func (a *Announcer) Start(ctx context.Context) error {
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
func (a *Announcer) write(ctx context.Context, event *eventsv1.Event) (outcome string) {
	for try := 1; ; try++ {
		err := a.create(ctx, event)
		switch {
		case err == nil || apierrors.IsAlreadyExists(err):
			return "written"
		case try == eventTries || FateOf(err) == Refused:
			return "refused"
		}
		select {
		case <-time.After(time.Duration(try) * time.Second):
		case <-ctx.Done():
			return "refused"
		}
	}
}

func (a *Announcer) create(ctx context.Context, event *eventsv1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	return a.client.Create(ctx, event.DeepCopy())
}

// Announce queues an Event about the node, and one with the same words about
// the set. It never blocks. One goroutine at a time may call it.
func (a *Announcer) Announce(word Announcement) {
	event := eventsv1.Event{
		EventTime:           metav1.NowMicro(),
		ReportingController: FieldManager,
		ReportingInstance:   a.instance,
		Type:                corev1.EventTypeNormal,
		Action:              "RemoveTaint",
		Reason:              word.Reason.Code.String(),
	}
	if code := word.Reason.Code; code == triage.Tainted || code == triage.FellBack {
		event.Type, event.Action = corev1.EventTypeWarning, "PlaceTaint"
	}
	note := word.Reason.String()
	if word.Trouble != "" {
		event.Type, event.Reason, note = corev1.EventTypeWarning, "Trouble", word.Trouble
		if word.Reason.Rule != (triage.RuleID{}) && word.Reason.Code != triage.RuleGone {
			note = word.Reason.String() + ": " + word.Trouble
		}
	}
	if m := word.ConfigMap; m != nil {
		event.Action = "Judge"
		if word.Trouble == "" {
			event.Reason, note = "Accepted", word.Word
		}
		a.queue(event, corev1.ObjectReference{
			APIVersion: "v1", Kind: "ConfigMap", Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		}, nil, note)
		return
	}
	set := word.set()
	if word.Node == nil {
		event.Action = "Judge"
		a.queue(event, *set, nil, note)
		return
	}
	node := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: word.Node.Name, UID: word.Node.UID}
	a.queue(event, node, set, note)
	if set != nil {
		a.queue(event, *set, &node, word.Node.Name+": "+note)
	}
}

func (word Announcement) set() *corev1.ObjectReference {
	if word.Set == nil {
		return nil
	}
	if source := configmaps.IsWrittenIn(word.Set); source != nil {
		return source
	}
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "ConditionSet",
		Name: word.Set.Name, UID: word.Set.UID, ResourceVersion: word.Set.ResourceVersion,
	}
}

func (a *Announcer) queue(event eventsv1.Event, about corev1.ObjectReference, related *corev1.ObjectReference, note string) {
	a.told++
	if event.Namespace = about.Namespace; event.Namespace == "" {
		event.Namespace = eventNamespace
	}
	event.Name = fmt.Sprintf("%s.%x.%x", strings.TrimRight(about.Name[:min(len(about.Name), maxEventName)], ".-"), event.EventTime.UnixNano(), a.told)
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
