package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// desk is a loop with a shelf in a real API server. A test brings it ConfigMaps, and
// lets it go on after every answer, at a time of its own.
type desk struct {
	*clinic
	api       client.WithWatch
	namespace string
	now       time.Time
	creates   atomic.Int64                           // of revisions that were tried
	onCreate  func(*appsv1.ControllerRevision) error // what happens before one is made
}

// deskIn returns a desk that nothing has come to yet. Several in one namespace are
// those of one who leads, and of who comes next.
func deskIn(t *testing.T, api client.WithWatch, namespace string) *desk {
	t.Helper()
	d := &desk{api: api, namespace: namespace, now: time.Now(), clinic: &clinic{t: t}}
	d.loop = newLoop(slog.New(slog.NewTextHandler(&d.log, nil)), func(word treat.Event) { d.events = append(d.events, word) })
	d.cfg.Namespace = namespace
	d.cfg.Client = interceptor.NewClient(api, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			if revision, ok := object.(*appsv1.ControllerRevision); ok {
				d.creates.Add(1)
				if d.onCreate != nil {
					if err := d.onCreate(revision); err != nil {
						return err
					}
				}
			}
			return c.Create(ctx, object, options...)
		},
	})
	d.configMaps = newConfigMapSets(d.cfg, nil)
	t.Cleanup(d.requests.Wait)
	return d
}

// begins lets the desk know what was kept, and all ConfigMaps that there are.
func (d *desk) begins(there ...*corev1.ConfigMap) {
	d.t.Helper()
	kept, err := d.configMaps.revisions.List(d.t.Context())
	must(d.t, err)
	d.handleAccess(revisionAccess{kept: kept})
	d.lists(there...)
	d.goesOn()
	d.loaded = true
	d.core.Loaded(d.now)
}

// lists brings all ConfigMaps that there are, and forgets the others.
func (d *desk) lists(there ...*corev1.ConfigMap) {
	d.t.Helper()
	list := make([]any, 0, len(there))
	for _, m := range there {
		list = append(list, m.DeepCopy())
	}
	must(d.t, d.configMaps.inbox.Replace(list, "1"))
}

// brings brings a ConfigMap that is new or has changed, and goes on.
func (d *desk) brings(m *corev1.ConfigMap) {
	d.t.Helper()
	must(d.t, d.configMaps.inbox.Update(m.DeepCopy()))
	d.goesOn()
}

// loses tells that a ConfigMap is gone, or no longer carries the label.
func (d *desk) loses(m *corev1.ConfigMap) {
	d.t.Helper()
	must(d.t, d.configMaps.inbox.Delete(m.DeepCopy()))
	d.goesOn()
}

// goesOn does what a round does about sets, and returns when the next is due.
func (d *desk) goesOn() (due time.Time) {
	d.validateSetsDue(d.now, true)
	d.takeConfigMaps(d.now)
	d.validateSetsDue(d.now, true)
	return d.writeRevisions(d.t.Context(), d.now)
}

// hears takes in what became of one write to the shelf, and goes on.
func (d *desk) hears() {
	d.t.Helper()
	select {
	case o := <-d.configMaps.done:
		d.handleRevisionResult(d.now, o)
	case <-time.After(time.Minute):
		d.t.Fatalf("no write is answered; the log:\n%s", &d.log)
	}
	d.goesOn()
}

// settles goes on until nothing is being written.
func (d *desk) settles() {
	d.t.Helper()
	for d.configMaps.writing > 0 {
		d.hears()
	}
}

// follows says which sets are followed, by their types.
func (d *desk) follows(want ...string) {
	d.t.Helper()
	got := []string{}
	for name, pol := range d.sets {
		if _, isFollowed := d.core.Population(setRule(name)); isFollowed {
			got = append(got, pol.set.Spec.Type)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) && len(got)+len(want) > 0 {
		d.t.Errorf("sets %v are followed, want %v; the log:\n%s", got, want, &d.log)
	}
}

// keeps says what whoever comes next would find: of every ConfigMap the types of the
// sets, once.
func (d *desk) keeps(want map[types.UID]string) {
	d.t.Helper()
	all, err := configmaps.NewRevisionStore(d.api, d.namespace).List(d.t.Context())
	must(d.t, err)
	got := map[types.UID]string{}
	for uid, kept := range all {
		if kept.Version != nil {
			got[uid] = kept.Version.Sets[0].Spec.Type
		}
		if !kept.HasOneRevision() {
			d.t.Errorf("several versions of %s are kept", uid)
		}
	}
	if !maps.Equal(got, want) {
		d.t.Errorf("%v are kept, want %v", got, want)
	}
}

// told says how many announcements have these words.
func (d *desk) told(words string) (times int) {
	for _, e := range d.events {
		if strings.Contains(e.Message+e.Failure, words) {
			times++
		}
	}
	return times
}

// tells says that something was told so many times.
func (d *desk) tells(times int, words string) {
	d.t.Helper()
	if got := d.told(words); got != times {
		d.t.Errorf("%q was told %d times, want %d: %+v", words, got, times, d.events)
	}
}

// isBehind says whether the metric says so of a ConfigMap.
func (d *desk) isBehind(m *corev1.ConfigMap) bool {
	return testutil.ToFloat64(d.cfg.Metrics.behind.WithLabelValues(m.Name)) == 1
}

// sheetSaying returns a ConfigMap with one key, sets.yaml.
func sheetSaying(name, uid, text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "any", Name: name, UID: types.UID(uid), ResourceVersion: "1"},
		Data:       map[string]string{"sets.yaml": text},
	}
}

// fileOf returns a file of one set: while Disk is True, the effect.
func fileOf(kind, effect string) string {
	return strings.NewReplacer("KIND", kind, "EFFECT", effect).Replace(`type: ConditionSets
conditionSets:
- type: KIND
  effect: EFFECT
  taintKey: example.com/KIND
  conditions:
  - ConditionType: Disk
    conditionStatus: true
`)
}

// in returns a ConfigMap with another text.
func in(m *corev1.ConfigMap, text string) *corev1.ConfigMap {
	edited := m.DeepCopy()
	edited.Data["sets.yaml"] = text
	return edited
}

func TestSheets(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	api, err := client.NewWithWatch(cluster.AdminConfig(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(d *desk, heir func() *desk){
		"a version is in force when it is kept":                        testNotKept,
		"who loses the race for a number takes the next":               testNumberTaken,
		"the label off and on while a version is being kept":           testLabelOffAndOn,
		"a ConfigMap made again while a version is being kept":         testMadeAgain,
		"an edit while a version is being kept":                        testEditedMeanwhile,
		"a narrowing edit while nobody leads":                          testNarrowedInAbsence,
		"a refused version is judged again when something moves":       testJudgedAgain,
		"a refused version is judged again when another one goes":      testJudgedAfterAnother,
		"a version that too many nodes match stays out":                testTooWide,
		"what is wrong is told again while it stands":                  testToldAgain,
		"a key that is no longer read as one of ours":                  testKeyStrays,
		"all that is wrong fits an Event":                              testManyWrong,
		"a set that did not change is not told again":                  testUnchangedIsSilent,
		"a set of a version in force falls later":                      testFallsLater,
		"what was kept and got lost in a storm":                        testKeptLostInAStorm,
		"back to the version in force":                                 testBackToForce,
		"who takes over goes on with what was kept":                    testTakeover,
		"what was kept and got lost is followed at once":               testKeptLost,
		"warnings name the line":                                       testWarnings,
		"without the right to read, taints stay":                       testDenied,
		"a kept version that cannot be read leaves taints as they are": testKeptUnreadable,
		"taints of an unreadable version go with its ConfigMap":        testKeptUnreadableGoes,
		"a good version replaces one that cannot be read":              testKeptUnreadableReplaced,
	} {
		t.Run(name, func(t *testing.T) {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "desk-"}}
			must(t, api.Create(t.Context(), ns))
			test(deskIn(t, api, ns.Name), func() *desk { return deskIn(t, api, ns.Name) })
		})
	}
}

// here returns a ConfigMap of the desk's namespace.
func (d *desk) here(m *corev1.ConfigMap) *corev1.ConfigMap {
	m.Namespace = d.namespace
	return m
}

var errForbidden = apierrors.NewForbidden(appsv1.Resource("controllerrevisions"), "x", fmt.Errorf("for a test"))

func testNotKept(d *desk, _ func() *desk) {
	m := d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule")))
	d.ail(1)
	d.begins()
	d.onCreate = func(*appsv1.ControllerRevision) error { return errForbidden }
	d.brings(m)
	var last time.Duration
	for try := 1; try <= 6; try++ {
		d.hears()
		if d.creates.Load() != int64(try) {
			d.t.Fatalf("%d writes were tried after %d answers", d.creates.Load(), try)
		}
		d.follows()
		due := d.goesOn()
		wait := due.Sub(d.now)
		if want := backOff(1) / 4; wait < want || wait > 2*firstRetry<<try {
			d.t.Errorf("after try %d it is tried again in %s", try, wait)
		}
		last = wait
		d.now = d.now.Add(wait / 2)
		if d.goesOn(); d.configMaps.writing > 0 {
			d.t.Fatal("it is tried again too early")
		}
		if !d.isBehind(m) {
			d.t.Error("no metric says that it is not in force")
		}
		if try == 6 {
			d.onCreate = nil
		}
		d.now = due
		d.goesOn()
	}
	if last < 4*firstRetry {
		d.t.Errorf("after many tries it is tried again in %s", last)
	}
	d.tells(1, "not in force yet: ")
	if got := d.lines("version not kept"); got != 1 {
		d.t.Errorf("it is logged %d times:\n%s", got, &d.log)
	}
	d.settles()
	d.follows("A")
	d.tells(1, "accepted and in force; sets: 1")
	d.keeps(map[types.UID]string{"u1": "A"})
	if d.isBehind(m) {
		d.t.Error("a metric says that it is not in force")
	}
	// The next trouble is news again.
	d.onCreate = func(*appsv1.ControllerRevision) error { return errForbidden }
	d.brings(in(m, fileOf("B", "NoSchedule")))
	d.hears()
	d.follows("A")
	d.tells(2, "not in force yet: ")
}

func testNumberTaken(d *desk, heir func() *desk) {
	m := d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule")))
	d.begins()
	d.brings(m)
	d.settles()
	rival := heir() // who was deposed, and does not know it yet; or the other way round
	rival.begins(m)
	rival.brings(in(m, fileOf("B", "NoSchedule")))
	rival.settles()
	rival.keeps(map[types.UID]string{"u1": "B"})
	d.brings(in(m, fileOf("C", "NoSchedule")))
	d.settles()
	if d.creates.Load() < 3 { // of A, of C under the number of B, and of C
		d.t.Errorf("%d writes were tried: the number was not taken", d.creates.Load())
	}
	d.follows("C")
	d.keeps(map[types.UID]string{"u1": "C"})
	// The other one says the same, and makes no second of it.
	rival.brings(in(m, fileOf("C", "NoSchedule")))
	rival.settles()
	rival.follows("C")
	d.keeps(map[types.UID]string{"u1": "C"})
}

// whileKept stops the next write before the API server has it, does something, and
// lets it go on.
func (d *desk) whileKept(m *corev1.ConfigMap, do func()) {
	d.t.Helper()
	stopped, goOn := make(chan struct{}), make(chan struct{})
	d.onCreate = func(*appsv1.ControllerRevision) error {
		close(stopped)
		<-goOn
		return nil
	}
	d.brings(m)
	<-stopped
	d.onCreate = nil
	do()
	close(goOn)
	d.settles()
}

func testLabelOffAndOn(d *desk, _ func() *desk) {
	m := d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule")))
	d.begins()
	d.brings(m)
	d.settles()
	d.whileKept(in(m, fileOf("B", "NoSchedule")), func() {
		d.follows("A")
		d.loses(m)
		d.follows()
		d.brings(in(m, fileOf("C", "NoSchedule")))
		d.follows() // what was kept has to go first
	})
	d.follows("C")
	d.keeps(map[types.UID]string{"u1": "C"})
	d.tells(0, "not in force")
	d.tells(2, "accepted and in force") // of A and of C
	if len(d.configMaps.leaving) > 0 {
		d.t.Errorf("%d are leaving still", len(d.configMaps.leaving))
	}
	// Without the label nothing stays.
	d.whileKept(in(m, fileOf("D", "NoSchedule")), func() { d.loses(m) })
	d.follows()
	d.keeps(map[types.UID]string{})
}

func testMadeAgain(d *desk, _ func() *desk) {
	m := d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule")))
	again := d.here(sheetSaying("policies", "u2", fileOf("B", "NoSchedule")))
	d.begins()
	d.whileKept(m, func() {
		d.lists(again) // the deletion itself was never seen
		d.goesOn()
	})
	d.follows("B")
	d.keeps(map[types.UID]string{"u2": "B"})
	if d.isBehind(again) || len(d.configMaps.leaving) > 0 {
		d.t.Errorf("behind: %t; leaving: %d", d.isBehind(again), len(d.configMaps.leaving))
	}
	// What was good in one that is gone is no version of the next.
	d.whileKept(in(again, fileOf("C", "NoSchedule")), func() {
		d.brings(d.here(sheetSaying("policies", "u3", "type: ConditionSets\n")))
		d.follows()
	})
	d.follows()
	d.tells(1, "there is no good version yet")
	d.keeps(map[types.UID]string{})
}

func testEditedMeanwhile(d *desk, _ func() *desk) {
	m := d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule")))
	d.begins()
	d.whileKept(m, func() { d.brings(in(m, fileOf("B", "NoSchedule"))) })
	d.follows("B")
	d.keeps(map[types.UID]string{"u1": "B"})
	// Also if the later one is no good: then what is being kept is the last good one.
	d.whileKept(in(m, fileOf("C", "NoSchedule")), func() {
		d.brings(in(m, "type: ConditionSets\n"))
		d.tells(1, "the last good version stays in force")
	})
	d.follows("C")
	if !d.isBehind(m) {
		d.t.Error("the metric says that what is there now is in force")
	}
}

func testNarrowedInAbsence(d *desk, heir func() *desk) {
	m := d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule")))
	d.ail(4)
	d.begins()
	d.brings(m)
	d.settles()
	next := heir()
	next.ail(9) // a storm, in which nobody leads
	next.begins(in(m, fileOf("A", "PreferNoSchedule")))
	next.follows("A")
	next.settles()
	next.tells(0, "not accepted")
	next.tells(1, "accepted and in force")
	if next.isBehind(m) {
		d.t.Error("a narrowing edit is not followed")
	}
	next = heir()
	next.ail(9)
	next.begins(in(m, fileOf("A", "NoExecute")))
	next.settles()
	next.follows("A")
	next.tells(1, "the last good version stays in force")
	if effect := next.sets["policies/sets.yaml/A"].set.Spec.Effect; effect != "PreferNoSchedule" {
		d.t.Errorf("the effect in force is %s", effect)
	}
}

// slip names a condition that no node reports, and that looks like another.
const slip = "KubletUnhealthy"

func testJudgedAgain(d *desk, _ func() *desk) {
	m := d.here(sheetSaying("policies", "u1", strings.Replace(fileOf("A", "NoSchedule"), "Disk", slip, 1)))
	d.ail(0)
	d.begins()
	d.brings(m)
	d.follows()
	d.tells(1, "not accepted, nothing of it is in force")
	// It would be accepted now, but nobody has told that anything has changed.
	d.configMaps.changed = false
	d.core.Observe(d.now, triage.Node{Name: "node-0", Conditions: []triage.Condition{{Type: slip, Status: triage.False}}})
	for range 3 {
		due := d.goesOn()
		if wait := due.Sub(d.now); wait <= 0 || wait > validateConfigMapsEvery {
			d.t.Fatalf("it is to be looked at again in %s", wait)
		}
		d.now = due
		d.goesOn()
		if d.configMaps.writing > 0 {
			d.t.Fatal("it was judged although nothing has moved")
		}
	}
	d.reports("node-0", slip)
	d.goesOn()
	if d.configMaps.writing > 0 {
		d.t.Error("it was judged before it was time")
	}
	d.now = d.now.Add(validateConfigMapsEvery)
	d.goesOn()
	d.settles()
	d.follows("A")
	d.tells(1, "not accepted")
	if due := d.goesOn(); !due.IsZero() {
		d.t.Errorf("nobody is refused, and something is due at %s", due)
	}
}

// A version that too many nodes match stays out until it says something else.
func testTooWide(d *desk, heir func() *desk) {
	m := d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule")))
	d.ail(10)
	d.begins()
	d.brings(m)
	d.tells(1, "not accepted, nothing of it is in force")
	d.tells(1, "change the ConfigMap or that annotation")
	d.tells(0, "change the set")
	d.ail(3)
	for range 3 {
		if due := d.goesOn(); !due.IsZero() {
			d.t.Errorf("it is to be judged again at %s", due)
		}
		d.now = d.now.Add(validateConfigMapsEvery)
	}
	// A list, a label and another ConfigMap are no reason to judge it again.
	other := d.here(sheetSaying("other", "u2", strings.Replace(fileOf("B", "NoSchedule"), "Disk", "Fan", 1)))
	d.lists(m, other)
	d.goesOn()
	labelled := m.DeepCopy()
	labelled.Labels, labelled.ResourceVersion = map[string]string{"team": "a"}, "2"
	d.brings(labelled)
	d.loses(other)
	d.settles()
	d.follows()
	d.tells(1, "not accepted")
	if !d.isBehind(m) {
		d.t.Error("a version that is refused is said to be in force")
	}
	touched := m.DeepCopy()
	touched.Annotations = map[string]string{v1alpha1.AcceptImpactAnnotation: "no"}
	d.brings(touched)
	d.settles()
	d.follows("A")
	// Who comes next knows nothing of a refusal, and judges by the nodes of then.
	d.ail(10)
	d.brings(in(m, fileOf("A", "NoExecute")))
	d.tells(2, "not accepted")
	next := heir()
	next.ail(3)
	next.begins(in(m, fileOf("A", "NoExecute")))
	next.settles()
	next.tells(0, "not accepted")
}

// What is wrong is told once, and again while it stands.
func testToldAgain(d *desk, _ func() *desk) {
	m := d.here(sheetSaying("policies", "u1", "type: ConditionSets\n"))
	wide := d.here(sheetSaying("wide", "u2", fileOf("A", "NoSchedule")))
	d.ail(10)
	d.begins()
	d.brings(m)
	d.brings(wide)
	began := d.now
	for d.now.Sub(began) < 150*time.Minute {
		d.now = d.now.Add(10 * time.Minute)
		d.goesOn()
	}
	d.tells(3, "conditionSets is missing")
	d.tells(3, "set A: 10 of 10 selected nodes")
	d.tells(6, "not accepted, nothing of it is in force")
	d.brings(in(m, fileOf("B", "PreferNoSchedule")+"  dryRun: true\n"))
	d.settles()
	d.now = d.now.Add(2 * reportRefusalEvery)
	d.goesOn()
	d.tells(3, "conditionSets is missing")
}

// twoKeys returns a ConfigMap with a set in each of two keys.
func (d *desk) twoKeys() *corev1.ConfigMap {
	m := d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule")))
	m.Data["more.yaml"] = strings.Replace(fileOf("B", "NoSchedule"), "Disk", "Fan", 1)
	return m
}

func testKeyStrays(d *desk, heir func() *desk) {
	m := d.twoKeys()
	d.begins()
	d.brings(m)
	d.settles()
	d.follows("A", "B")
	for name, test := range map[string]struct{ text, told string }{
		"emptied":   {"", "key more.yaml, line 1: this is empty, and in the version in force there are sets in this key; to remove them, delete the key"},
		"a comment": {"# gone\n", "line 1: this is empty"},
		"a list":    {"\n- type: ConditionSets\n  conditionSets: []\n", "line 2: this is a list of 1 without type: ConditionSets"},
		"indented":  {"sets:\n  type: ConditionSets\n  conditionSets: []\n", "line 1: this is a mapping without type: ConditionSets"},
		"torn":      {`{"apiVersion": "v1", "type": "ConditionSets", "conditionSets": [`, "line 1: this is not YAML: "},
		"another":   {"hello", `line 1: this is "hello" without type: ConditionSets`},
	} {
		strayed := m.DeepCopy()
		strayed.Data["more.yaml"] = test.text
		d.brings(strayed)
		d.settles()
		d.follows("A", "B")
		d.now = d.now.Add(validateConfigMapsEvery)
		d.ail(0) // which moves something
		d.goesOn()
		d.settles()
		d.follows("A", "B")
		if d.told(test.told) == 0 || !d.isBehind(m) {
			d.t.Errorf("%s: %q was not told: %+v", name, test.told, d.events[len(d.events)-1])
		}
		next := heir()
		next.begins(strayed)
		next.settles()
		next.follows("A", "B")
	}
	without := m.DeepCopy()
	delete(without.Data, "more.yaml")
	d.brings(without)
	d.settles()
	d.follows("A")
	// It is no key of ours any more, whatever stands in it.
	without.Data["more.yaml"] = "hello"
	d.brings(without)
	d.settles()
	if d.isBehind(m) {
		d.t.Error("a key that held no sets is taken for one that does")
	}
	without.Data["sets.yaml"] = "type: ConditionSets\nconditionSets: []\n"
	d.brings(without)
	d.settles()
	d.follows()
}

// All that is wrong is named in an Event, which has an end.
func testManyWrong(d *desk, _ func() *desk) {
	const head = "type: ConditionSets\nconditionSets:\n"
	var text strings.Builder
	text.WriteString(head)
	for _, kind := range []string{"A", "B", "C", "D"} {
		text.WriteString(strings.TrimPrefix(strings.Replace(fileOf(kind, "NoSchedule"), "Disk", "Ready", 1), head))
	}
	m := d.here(sheetSaying("policies", "u1", text.String()))
	d.ail(0)
	d.begins()
	d.brings(m)
	trouble := d.events[len(d.events)-1].Failure
	if len(trouble) > treat.MaxNote || !strings.Contains(trouble, ": lines 8, 13, 14, 19, 20, 25, 26 of key sets.yaml; key sets.yaml, line ") {
		d.t.Errorf("%d letters: %s", len(trouble), trouble)
	}
	for _, kind := range []string{"A", "B", "C", "D"} {
		if !strings.Contains(trouble, "set "+kind+": Ready=True is") {
			d.t.Errorf("nothing is said of set %s: %s", kind, trouble)
		}
	}
}

// What is the same as before is not told again with every edit of something else.
func testUnchangedIsSilent(d *desk, _ func() *desk) {
	m := d.twoKeys()
	d.ail(1)
	d.begins()
	d.brings(m)
	d.settles()
	d.tells(1, "set A: 1 of 10 selected nodes")
	edited := m.DeepCopy()
	edited.Data["more.yaml"] = strings.Replace(m.Data["more.yaml"], "NoSchedule", "PreferNoSchedule", 1)
	d.brings(edited)
	d.settles()
	d.tells(2, "accepted and in force")
	d.tells(1, "set A: ")
	d.tells(2, "set B: ") // that no node reports Fan
}

// Whoever takes over finds a set in the API that goes before one of a version in force.
func testFallsLater(d *desk, heir func() *desk) {
	m := d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule")))
	d.begins()
	d.brings(m)
	d.settles()
	next := heir()
	next.followSet(next.now, setNamed("api", createdAt(1), typed("A"), asking("Heat", "True"), acceptedBefore(1)))
	next.begins(m)
	if next.sets["policies/sets.yaml/A"].err == nil || !next.isBehind(m) {
		d.t.Errorf("refused: %v; behind: %t", next.sets["policies/sets.yaml/A"].err, next.isBehind(m))
	}
	next.removeSet(next.now, "api")
	next.goesOn()
	next.settles()
	next.follows("A")
	if next.isBehind(m) {
		d.t.Error("the set is followed, and the metric says that something is not")
	}
}

// What was kept got lost in a storm, and what was placed is on the nodes.
func testKeptLostInAStorm(d *desk, heir func() *desk) {
	m := d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule")))
	for _, has := range []int{9, 10} {
		next := heir()
		next.ail(10)
		for i := range has {
			next.carries(next.nodeStates[fmt.Sprintf("node-%d", i)].node, "policies/sets.yaml/A", "example.com/A", corev1.TaintEffectNoSchedule)
		}
		next.begins(m)
		if has < 10 {
			next.follows()
			continue
		}
		next.follows("A")
		next.settles()
	}
}

func testJudgedAfterAnother(d *desk, _ func() *desk) {
	first := d.here(sheetSaying("first", "u1", fileOf("Same", "NoSchedule")))
	second := d.here(sheetSaying("second", "u2", fileOf("Same", "NoSchedule")))
	d.begins()
	d.brings(first)
	d.settles()
	d.brings(second)
	d.tells(1, "key sets.yaml, line 3: set Same: ")
	d.loses(first) // and no time passes
	d.settles()
	d.follows("Same")
	d.keeps(map[types.UID]string{"u2": "Same"})
	// One in the API is in its way as well, and goes.
	d.followSet(d.now, setNamed("api", typed("Third"), asking("Heat", "True")))
	d.goesOn()
	third := d.here(sheetSaying("third", "u3", strings.Replace(fileOf("Third", "NoSchedule"), "Disk", "Fan", 1)))
	d.brings(third)
	d.tells(1, "set Third: ")
	d.removeSet(d.now, "api")
	d.configMaps.judgeAt, d.configMaps.changed = d.now, true // as takeSets does
	d.goesOn()
	d.settles()
	d.follows("Same", "Third")
}

func testBackToForce(d *desk, _ func() *desk) {
	m := d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule")))
	d.begins()
	d.brings(m)
	d.settles()
	for range 2 { // whoever writes the same again is told nothing new
		d.brings(in(m, "type: ConditionSets\n"))
	}
	d.tells(1, "the last good version stays in force")
	if !d.isBehind(m) {
		d.t.Error("a bad version is said to be in force")
	}
	for range 2 {
		d.brings(m)
	}
	d.settles()
	d.tells(1, "back to the version that is in force")
	d.tells(1, "accepted and in force")
	if d.isBehind(m) || d.creates.Load() != 1 {
		d.t.Errorf("behind: %t; kept %d times", d.isBehind(m), d.creates.Load())
	}
}

func testTakeover(d *desk, heir func() *desk) {
	edited := d.here(sheetSaying("edited", "u1", fileOf("Edited", "NoSchedule")))
	gone := d.here(sheetSaying("gone", "u2", strings.Replace(fileOf("Gone", "NoSchedule"), "Disk", "Fan", 1)))
	d.ail(1)
	d.begins()
	d.brings(edited)
	d.brings(gone)
	d.settles()
	d.follows("Edited", "Gone")
	d.keeps(map[types.UID]string{"u1": "Edited", "u2": "Gone"})
	next := heir()
	next.ail(9) // which is no matter to what is in force
	next.begins(in(edited, "type: ConditionSets\n"))
	next.follows("Edited")
	next.tells(1, "the last good version stays in force")
	next.settles()
	next.keeps(map[types.UID]string{"u1": "Edited"})
	if next.creates.Load() > 0 || len(next.configMaps.leaving) > 0 {
		d.t.Errorf("%d versions were written, %d are leaving", next.creates.Load(), len(next.configMaps.leaving))
	}
}

// There is nothing kept of a good version: its taints are not taken off until it is.
func testKeptLost(d *desk, _ func() *desk) {
	d.onCreate = func(*appsv1.ControllerRevision) error { return errForbidden }
	d.begins(d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule"))))
	d.follows("A")
	d.hears()
	d.follows("A")
}

func testWarnings(d *desk, _ func() *desk) {
	text := strings.Replace(fileOf("A", "NoSchedule"), "Disk\n", "Unheard\n", 1) +
		strings.TrimPrefix(fileOf("B", "NoExecute"), "type: ConditionSets\nconditionSets:\n") + "  maxUnhealthy: 100%\n"
	d.ail(1)
	d.begins()
	d.brings(d.here(sheetSaying("policies", "u1", text)))
	d.settles()
	d.tells(1, "accepted and in force; sets: 2; key sets.yaml, line 7: set A: no node reports Unheard")
	d.tells(1, "; key sets.yaml, line 9: set B: 1 of 10 selected nodes")
	d.tells(1, "; key sets.yaml, line 15: set B: 100% lets NoExecute empty")
	d.tells(0, "spec.")
}

// tainted admits a sick node with taints that were placed for rules.
func (d *desk) tainted(name string, rules ...string) {
	d.t.Helper()
	node := named(name, "1")
	node.Status.Conditions = []corev1.NodeCondition{{Type: "Disk", Status: corev1.ConditionTrue}, {Type: "Fan", Status: corev1.ConditionTrue}}
	added := metav1.Unix(1000, 0)
	var note ownership.Record
	for _, rule := range rules {
		key := "example.com/" + rule[strings.LastIndex(rule, "/")+1:]
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &added})
		note.Taints = append(note.Taints, ownership.Taint{Rule: ownership.Rule(setRule(rule)), Key: key, Effect: corev1.TaintEffectNoSchedule, Added: added.UTC()})
		if _, isWritten := configmaps.ConfigMapName(rule); !isWritten {
			continue
		}
		note.Starts = append(note.Starts, ownership.RememberedStart{Rule: ownership.Rule(setRule(rule)), Condition: "Disk", Since: added.UTC()})
	}
	text, _ := note.Encode()
	node.Annotations = map[string]string{ownership.Annotation: text}
	d.core.Observe(d.now, d.upsertNode(node, d.now))
}

// removes says which taints of a node are to go now, and that nothing else changes
// if there are none.
func (d *desk) removes(node string, want ...string) {
	d.t.Helper()
	p := d.nodeStates[node]
	plan, _ := d.planOf(p)
	var got []string
	change := treat.Prepare(p.node, plan, d.now)
	if change != nil {
		for _, removed := range change.Removed {
			got = append(got, removed.Rule.Name)
		}
	}
	if !slices.Equal(got, want) || change != nil && len(want) == 0 {
		d.t.Errorf("of %s %v go, want %v; change %+v", node, got, want, change)
	}
	if isQueued := p.stage == queued; isQueued != (len(want) > 0) && d.loaded {
		d.t.Errorf("%s waits to be written: %t", node, isQueued)
	}
}

func testDenied(d *desk, heir func() *desk) {
	m := d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule")))
	d.begins()
	d.brings(m)
	d.settles()

	next := heir()
	next.ail(0)
	next.tainted("sick", "gone", "policies/sets.yaml/A", "policies/sets.yaml/Gone", "z-api")
	next.tainted("kept", "policies/sets.yaml/A", "policies/sets.yaml/Gone", "z-api")
	must(d.t, next.nodeInbox.Replace(nil, ""))
	must(d.t, next.setInbox.Replace([]any{setNamed("z-api", asking("Fan", "True"))}, "1"))
	next.statusWritesRunning, next.writesRunning = statusWriters, writers // nothing can be written here
	next.round(d.t.Context())
	if next.loaded {
		d.t.Fatal("it has not waited to know what was kept")
	}
	for range 3 {
		next.handleAccess(revisionAccess{denied: errForbidden})
		next.round(d.t.Context())
	}
	if !next.loaded || next.lines("sets in configmaps not followed for want of a right") != 1 {
		d.t.Fatalf("loaded: %t; the log:\n%s", next.loaded, &next.log)
	}
	next.handleAccess(revisionAccess{denied: errors.New("another right")})
	if got := next.lines("sets in configmaps not followed for want of a right"); got != 2 {
		d.t.Errorf("another right is told %d times", got-1)
	}
	next.follows("z-api")
	next.removes("sick", "gone")
	next.removes("kept")

	// The right is there: all is as it would have been.
	kept, err := next.configMaps.revisions.List(d.t.Context())
	must(d.t, err)
	next.lists(in(m, "type: ConditionSets\n"))
	next.round(d.t.Context())
	next.follows("z-api")
	next.handleAccess(revisionAccess{kept: kept})
	next.round(d.t.Context())
	next.follows("A", "z-api")
	next.removes("sick", "gone", "policies/sets.yaml/Gone")
	next.removes("kept", "policies/sets.yaml/Gone")
	next.tells(1, "the last good version stays in force")
	if got := testutil.ToFloat64(next.cfg.Metrics.configMapsRead); got != 1 || next.lines("sets in configmaps followed") != 1 {
		d.t.Errorf("ConfigMaps are followed: %v; the log:\n%s", got, &next.log)
	}
}

// keepUnreadable keeps something that a later reader does not understand.
func (d *desk) keepUnreadable(m *corev1.ConfigMap) {
	d.t.Helper()
	must(d.t, d.api.Create(d.t.Context(), &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.namespace, Name: "unreadable", Labels: map[string]string{configmaps.RevisionLabel: configmaps.LabelValue},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: m.Name, UID: m.UID}},
		},
		Data:     runtime.RawExtension{Raw: fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":%q,"uid":%q},"data":{"sets.yaml":"type: ConditionSets"}}`, m.Name, m.Namespace, m.UID)},
		Revision: 1,
	}))
}

func testKeptUnreadable(d *desk, _ func() *desk) {
	m := d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule")))
	d.keepUnreadable(m)
	d.ail(10)
	d.tainted("node-0", "other/sets.yaml/B", "policies/sets.yaml/A", "policies/sets.yaml/Old")
	d.tainted("node-1", "policies/sets.yaml/A")
	d.begins(m) // which is over its bound
	d.follows()
	d.tells(1, "taints that its sets have placed stay until there is a good version")
	d.removes("node-0", "other/sets.yaml/B")
	d.removes("node-1")
	d.ail(0)
	d.nodeStates["node-0"].stage = idle // as after the write
	d.tainted("node-0", "policies/sets.yaml/A", "policies/sets.yaml/Old")
	d.tainted("node-1", "policies/sets.yaml/A")
	d.removes("node-0")
	m.Annotations = map[string]string{v1alpha1.AcceptImpactAnnotation: "again"}
	d.brings(m)
	d.settles()
	d.follows("A")
	d.keeps(map[types.UID]string{"u1": "A"})
	d.removes("node-0", "policies/sets.yaml/Old")
}

// The present version is good, and in force before it is kept.
func testKeptUnreadableReplaced(d *desk, _ func() *desk) {
	m := d.here(sheetSaying("policies", "u1", fileOf("A", "NoSchedule")))
	d.keepUnreadable(m)
	d.ail(0)
	d.tainted("node-0", "policies/sets.yaml/Old")
	d.onCreate = func(*appsv1.ControllerRevision) error { return errForbidden }
	d.begins(m)
	d.follows("A")
	d.removes("node-0", "policies/sets.yaml/Old")
}

func testKeptUnreadableGoes(d *desk, _ func() *desk) {
	m := d.here(sheetSaying("policies", "u1", "type: ConditionSets\n"))
	d.keepUnreadable(m)
	d.tainted("node-0", "policies/sets.yaml/A")
	d.begins(m)
	d.removes("node-0")
	d.loses(m)
	d.removes("node-0", "policies/sets.yaml/A")
	d.settles()
	d.keeps(map[types.UID]string{})
}

func TestSheetsAreReadOnTheirWayIn(t *testing.T) {
	box := newConfigMapInbox(nil)
	must(t, box.Update(sheetSaying("good", "u1", fileOf("A", "NoSchedule"))))
	must(t, box.Update(sheetSaying("bad", "u2", "type: ConditionSets\n")))
	got := box.take().changes
	if good := got["good"].object; good.err != nil || len(good.version.Sets) != 1 {
		t.Errorf("the good one was read as %+v", good)
	}
	if bad := got["bad"].object; bad.err == nil || bad.version != nil {
		t.Errorf("the bad one was read as %+v", bad)
	}
	if box.Update(&corev1.Pod{}) == nil {
		t.Error("a pod was taken for a ConfigMap")
	}
}
