package conditionset

import (
	"context"
	"errors"
	"fmt"
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
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
)

// configMapFixture is a loop with a revision store in a real API server. The test delivers
// ConfigMaps, runs rounds, and controls the time.
type configMapFixture struct {
	*fixture
	api       client.WithWatch
	namespace string
	now       time.Time
	creates   atomic.Int64                           // attempted creations of revisions
	onCreate  func(*appsv1.ControllerRevision) error // called before a creation
}

// newConfigMapFixture returns an empty fixture. Several fixtures in one namespace are successive
// leaders.
func newConfigMapFixture(t *testing.T, api client.WithWatch, namespace string) *configMapFixture {
	t.Helper()
	d := &configMapFixture{api: api, namespace: namespace, now: time.Now()}
	through := interceptor.NewClient(api, interceptor.Funcs{
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
	d.fixture = newFixture(t, Config{Client: through, Namespace: namespace})
	t.Cleanup(d.requests.Wait)
	return d
}

// begins loads the revisions and all ConfigMaps.
func (d *configMapFixture) begins(there ...*corev1.ConfigMap) {
	d.t.Helper()
	kept, err := d.configMaps.revisions.List(d.t.Context())
	must(d.t, err)
	d.handleAccess(revisionAccess{stored: kept})
	d.lists(there...)
	d.runRound()
	d.loaded = true
	d.core.Loaded(d.now)
}

// lists delivers a full list of ConfigMaps.
func (d *configMapFixture) lists(there ...*corev1.ConfigMap) {
	d.t.Helper()
	list := make([]any, 0, len(there))
	for _, m := range there {
		list = append(list, m.DeepCopy())
	}
	must(d.t, d.configMaps.inbox.Replace(list, "1"))
}

// brings delivers a new or changed ConfigMap and runs a round.
func (d *configMapFixture) brings(m *corev1.ConfigMap) {
	d.t.Helper()
	must(d.t, d.configMaps.inbox.Update(m.DeepCopy()))
	d.runRound()
}

// loses delivers the deletion of a ConfigMap.
func (d *configMapFixture) loses(m *corev1.ConfigMap) {
	d.t.Helper()
	must(d.t, d.configMaps.inbox.Delete(m.DeepCopy()))
	d.runRound()
}

// runRound runs the part of a round that handles sets, and returns when the next is due.
func (d *configMapFixture) runRound() (due time.Time) {
	d.validateDue(d.now, true)
	d.takeConfigMaps(d.now)
	d.validateDue(d.now, true)
	return d.writeRevisions(d.t.Context(), d.now)
}

// deliver waits for the result of one revision write and runs a round.
func (d *configMapFixture) deliver() {
	d.t.Helper()
	select {
	case handle := <-d.posts:
		handle(d.now)
	case <-time.After(time.Minute):
		d.t.Fatalf("no write is answered; the log:\n%s", &d.log)
	}
	d.runRound()
}

// settles waits until no revision is being written.
func (d *configMapFixture) settles() {
	d.t.Helper()
	for d.configMaps.writing > 0 {
		d.deliver()
	}
}

// follows checks which sets are followed, by type.
func (d *configMapFixture) follows(want ...string) {
	d.t.Helper()
	got := []string{}
	for name, pol := range d.known {
		if _, isFollowed := d.core.Population(setRule(name)); isFollowed {
			got = append(got, pol.set.Spec.Type)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) && len(got)+len(want) > 0 {
		d.t.Errorf("sets %v are followed, want %v; the log:\n%s", got, want, &d.log)
	}
}

// keeps checks what the next leader would find: the type of the first set of every
// ConfigMap, with one revision each.
func (d *configMapFixture) keeps(want map[types.UID]string) {
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

// told counts the Events with this text.
func (d *configMapFixture) told(message string) (times int) {
	for _, e := range d.events {
		if strings.Contains(e.Message+e.Failure, message) {
			times++
		}
	}
	return times
}

// tells checks the number of Events with this text.
func (d *configMapFixture) tells(times int, message string) {
	d.t.Helper()
	if got := d.told(message); got != times {
		d.t.Errorf("%q was reported %d times, want %d: %+v", message, got, times, d.events)
	}
}

// isBehind reports whether the metric says that the content is not in force.
func (d *configMapFixture) isBehind(m *corev1.ConfigMap) bool {
	return testutil.ToFloat64(d.cfg.Metrics.behind.WithLabelValues(m.Name)) == 1
}

// configMapWith returns a ConfigMap with one key, sets.yaml.
func configMapWith(name, uid, text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "any", Name: name, UID: types.UID(uid), ResourceVersion: "1", Labels: map[string]string{configmaps.Label: configmaps.LabelValue},
		},
		Data: map[string]string{"sets.yaml": text},
	}
}

// fileOf returns a file with one set: the effect while Disk is True.
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

// in returns a copy of the ConfigMap with another text.
func in(m *corev1.ConfigMap, text string) *corev1.ConfigMap {
	edited := m.DeepCopy()
	edited.Data["sets.yaml"] = text
	return edited
}

func TestConfigMapSets(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	crd := testkit.Value(deploy.CRD("conditionsets.autohealer.resourcestack.com")).Must(t)
	testkit.Value(cluster.KubectlApply(t.Context(), string(crd))).Must(t)
	testkit.Value(cluster.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=30s", "crd/conditionsets.autohealer.resourcestack.com")).Must(t)
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	api := testkit.Value(client.NewWithWatch(cluster.AdminConfig(), client.Options{Scheme: scheme})).Must(t)
	for name, test := range map[string]func(d *configMapFixture, successor func() *configMapFixture){
		"a version is in force when it is stored":                       testNotKept,
		"a lost race for a revision number takes the next":              testNumberTaken,
		"the label off and on while a version is being stored":          testLabelOffAndOn,
		"sets without the label are reported":                           testLabelMissing,
		"a ConfigMap made again while a version is being stored":        testMadeAgain,
		"an edit while a version is being stored":                       testEditedMeanwhile,
		"a narrowing edit while no controller leads":                    testNarrowedInAbsence,
		"a rejected version is validated again after a change":          testJudgedAgain,
		"a rejected version is validated again when another is deleted": testJudgedAfterAnother,
		"a version that matches too many nodes stays rejected":          testTooWide,
		"an annotation pauses all sets":                                 testPaused,
		"an annotation on an invalid version pauses all sets":           testPausedInvalid,
		"a problem is reported again while it lasts":                    testToldAgain,
		"a key that no longer contains sets":                            testKeyStrays,
		"all problems fit an Event":                                     testManyWrong,
		"an unchanged set is not reported again":                        testUnchangedIsSilent,
		"a set in force is rejected later":                              testFallsLater,
		"revisions lost in a storm":                                     testKeptLostInAStorm,
		"back to the version in force":                                  testBackToForce,
		"a new leader continues with the stored revisions":              testTakeover,
		"a version without a revision is followed at once":              testKeptLost,
		"warnings name the line":                                        testWarnings,
		"without the right to read, taints stay":                        testDenied,
		"an unreadable revision keeps taints unchanged":                 testKeptUnreadable,
		"taints of an unreadable version go with its ConfigMap":         testKeptUnreadableGoes,
		"a valid version replaces an unreadable one":                    testKeptUnreadableReplaced,
		"a user's ConditionSet has the name of a mirror":                testMirrorNameTaken,
	} {
		t.Run(name, func(t *testing.T) {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "configmaps-"}}
			must(t, api.Create(t.Context(), ns))
			test(newConfigMapFixture(t, api, ns.Name), func() *configMapFixture { return newConfigMapFixture(t, api, ns.Name) })
		})
	}
}

// here moves a ConfigMap to the fixture's namespace.
func (d *configMapFixture) here(m *corev1.ConfigMap) *corev1.ConfigMap {
	m.Namespace = d.namespace
	return m
}

var errForbidden = apierrors.NewForbidden(appsv1.Resource("controllerrevisions"), "x", fmt.Errorf("for a test"))

func testNotKept(d *configMapFixture, _ func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	d.makeUnhealthy(1)
	d.begins()
	d.onCreate = func(*appsv1.ControllerRevision) error { return errForbidden }
	d.brings(m)
	var last time.Duration
	for try := 1; try <= 6; try++ {
		d.deliver()
		if d.creates.Load() != int64(try) {
			d.t.Fatalf("%d writes were tried after %d answers", d.creates.Load(), try)
		}
		d.follows()
		due := d.runRound()
		wait := due.Sub(d.now)
		if want := engine.RetryDelay(1) / 4; wait < want || wait > 2*100*time.Millisecond<<try {
			d.t.Errorf("after try %d it is tried again in %s", try, wait)
		}
		last = wait
		d.now = d.now.Add(wait / 2)
		if d.runRound(); d.configMaps.writing > 0 {
			d.t.Fatal("it is tried again too early")
		}
		if !d.isBehind(m) {
			d.t.Error("no metric says that it is not in force")
		}
		if try == 6 {
			d.onCreate = nil
		}
		d.now = due
		d.runRound()
	}
	if last < 4*100*time.Millisecond {
		d.t.Errorf("after many tries it is tried again in %s", last)
	}
	d.tells(1, "not in force yet: ")
	if got := d.lines("revision not stored"); got != 1 {
		d.t.Errorf("it is logged %d times:\n%s", got, &d.log)
	}
	d.settles()
	d.follows("A")
	d.tells(1, "accepted and in force; sets: 1")
	d.keeps(map[types.UID]string{"u1": "A"})
	if d.isBehind(m) {
		d.t.Error("a metric says that it is not in force")
	}
	// The next failure is reported again.
	d.onCreate = func(*appsv1.ControllerRevision) error { return errForbidden }
	d.brings(in(m, fileOf("B", "NoSchedule")))
	d.deliver()
	d.follows("A")
	d.tells(2, "not in force yet: ")
}

func testNumberTaken(d *configMapFixture, successor func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	d.begins()
	d.brings(m)
	d.settles()
	rival := successor() // a leader that was deposed and does not know it yet, or the other way round
	rival.begins(m)
	rival.brings(in(m, fileOf("B", "NoSchedule")))
	rival.settles()
	rival.keeps(map[types.UID]string{"u1": "B"})
	d.brings(in(m, fileOf("C", "NoSchedule")))
	d.settles()
	if d.creates.Load() < 3 { // A, then C with the revision number of B, then C again
		d.t.Errorf("%d writes were tried: the number was not taken", d.creates.Load())
	}
	d.follows("C")
	d.keeps(map[types.UID]string{"u1": "C"})
	// The other leader enforces the same content and stores no second revision.
	rival.brings(in(m, fileOf("C", "NoSchedule")))
	rival.settles()
	rival.follows("C")
	d.keeps(map[types.UID]string{"u1": "C"})
}

// whileKept blocks the next revision write before it reaches the API server, calls do,
// and lets the write continue.
func (d *configMapFixture) whileKept(m *corev1.ConfigMap, do func()) {
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

func testLabelOffAndOn(d *configMapFixture, _ func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	d.begins()
	d.brings(m)
	d.settles()
	d.whileKept(in(m, fileOf("B", "NoSchedule")), func() {
		d.follows("A")
		d.brings(unlabelled(m))
		d.follows()
		d.brings(in(m, fileOf("C", "NoSchedule")))
		d.follows() // the old revision must be deleted first
	})
	d.follows("C")
	d.keeps(map[types.UID]string{"u1": "C"})
	d.tells(0, "not in force")
	d.tells(2, "accepted and in force") // for A and C
	if len(d.configMaps.deleted) > 0 {
		d.t.Errorf("%d are leaving still", len(d.configMaps.deleted))
	}
	// Without the label no revision stays.
	d.whileKept(in(m, fileOf("D", "NoSchedule")), func() { d.brings(unlabelled(m)) })
	d.follows()
	d.keeps(map[types.UID]string{})
}

// unlabelled returns a copy of the ConfigMap without its label.
func unlabelled(m *corev1.ConfigMap) *corev1.ConfigMap {
	m = m.DeepCopy()
	m.Labels = nil
	return m
}

func testLabelMissing(d *configMapFixture, _ func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	other := d.here(configMapWith("other", "u2", "type: SomethingElse"))
	const says = "lacks a label: kubectl label configmap"
	d.begins(unlabelled(m), unlabelled(other))
	d.follows()
	d.tells(1, says)
	edited := in(unlabelled(m), fileOf("B", "NoSchedule"))
	d.brings(edited)
	d.tells(1, says) // once while it lacks the label
	d.brings(m)
	d.settles()
	d.follows("A")
	d.brings(unlabelled(m))
	d.settles()
	d.follows()
	d.tells(2, says)
	d.loses(unlabelled(m))
	d.follows()
}

func testMadeAgain(d *configMapFixture, _ func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	again := d.here(configMapWith("policies", "u2", fileOf("B", "NoSchedule")))
	d.begins()
	d.whileKept(m, func() {
		d.lists(again) // the watch has missed the deletion
		d.runRound()
	})
	d.follows("B")
	d.keeps(map[types.UID]string{"u2": "B"})
	if d.isBehind(again) || len(d.configMaps.deleted) > 0 {
		d.t.Errorf("behind: %t; leaving: %d", d.isBehind(again), len(d.configMaps.deleted))
	}
	// A valid version of a deleted ConfigMap is not a version of the next one.
	d.whileKept(in(again, fileOf("C", "NoSchedule")), func() {
		d.brings(d.here(configMapWith("policies", "u3", "type: ConditionSets\n")))
		d.follows()
	})
	d.follows()
	d.tells(1, "there is no good version yet")
	d.keeps(map[types.UID]string{})
}

func testEditedMeanwhile(d *configMapFixture, _ func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	d.begins()
	d.whileKept(m, func() { d.brings(in(m, fileOf("B", "NoSchedule"))) })
	d.follows("B")
	d.keeps(map[types.UID]string{"u1": "B"})
	// If the later version is invalid, the version being stored is the last valid one.
	d.whileKept(in(m, fileOf("C", "NoSchedule")), func() {
		d.brings(in(m, "type: ConditionSets\n"))
		d.tells(1, "the last good version stays in force")
	})
	d.follows("C")
	if !d.isBehind(m) {
		d.t.Error("the metric says that what is there now is in force")
	}
}

func testNarrowedInAbsence(d *configMapFixture, successor func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	d.makeUnhealthy(4)
	d.begins()
	d.brings(m)
	d.settles()
	next := successor()
	next.makeUnhealthy(9) // a storm while no controller leads
	next.begins(in(m, fileOf("A", "PreferNoSchedule")))
	next.follows("A")
	next.settles()
	next.tells(0, "not accepted")
	next.tells(1, "accepted and in force")
	if next.isBehind(m) {
		d.t.Error("a narrowing edit is not followed")
	}
	next = successor()
	next.makeUnhealthy(9)
	next.begins(in(m, fileOf("A", "NoExecute")))
	next.settles()
	next.follows("A")
	next.tells(1, "the last good version stays in force")
	if effect := next.known["policies/sets.yaml/A"].set.Spec.Effect; effect != "PreferNoSchedule" {
		d.t.Errorf("the effect in force is %s", effect)
	}
}

// misspelled is a condition that no node reports and that resembles another.
const misspelled = "KubletUnhealthy"

func testJudgedAgain(d *configMapFixture, _ func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", strings.Replace(fileOf("A", "NoSchedule"), "Disk", misspelled, 1)))
	d.makeUnhealthy(0)
	d.begins()
	d.brings(m)
	d.follows()
	d.tells(1, "not accepted, nothing of it is in force")
	// The version is valid now, but no change has been reported.
	d.configMaps.changed = false
	d.core.Observe(d.now, triage.Node{Name: "node-0", Conditions: []triage.Condition{{Type: misspelled, Status: triage.False}}})
	for range 3 {
		due := d.runRound()
		if wait := due.Sub(d.now); wait <= 0 || wait > validateConfigMapsEvery {
			d.t.Fatalf("it is to be looked at again in %s", wait)
		}
		d.now = due
		d.runRound()
		if d.configMaps.writing > 0 {
			d.t.Fatal("it was judged although nothing has moved")
		}
	}
	d.reports("node-0", misspelled)
	d.runRound()
	if d.configMaps.writing > 0 {
		d.t.Error("it was judged before it was time")
	}
	d.now = d.now.Add(validateConfigMapsEvery)
	d.runRound()
	d.settles()
	d.follows("A")
	d.tells(1, "not accepted")
	if due := d.runRound(); !due.IsZero() {
		d.t.Errorf("nothing is rejected, but a check is due at %s", due)
	}
}

// A version that matches too many nodes stays rejected until its content changes.
func testTooWide(d *configMapFixture, successor func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	d.makeUnhealthy(10)
	d.begins()
	d.brings(m)
	d.tells(1, "not accepted, nothing of it is in force")
	d.tells(1, "change the ConfigMap or that annotation")
	d.tells(0, "change the set")
	d.makeUnhealthy(3)
	for range 3 {
		if due := d.runRound(); !due.IsZero() {
			d.t.Errorf("it is to be judged again at %s", due)
		}
		d.now = d.now.Add(validateConfigMapsEvery)
	}
	// A list, a label and another ConfigMap do not cause a new validation.
	other := d.here(configMapWith("other", "u2", strings.Replace(fileOf("B", "NoSchedule"), "Disk", "Fan", 1)))
	d.lists(m, other)
	d.runRound()
	labelled := m.DeepCopy()
	labelled.Labels["team"], labelled.ResourceVersion = "a", "2"
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
	// The next leader does not know the refusal and validates with its own nodes.
	d.makeUnhealthy(10)
	d.brings(in(m, fileOf("A", "NoExecute")))
	d.tells(2, "not accepted")
	next := successor()
	next.makeUnhealthy(3)
	next.begins(in(m, fileOf("A", "NoExecute")))
	next.settles()
	next.tells(0, "not accepted")
}

// The annotation on the ConfigMap pauses its sets.
func testPaused(d *configMapFixture, successor func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	d.begins()
	d.brings(m)
	d.settles()
	d.follows("A")
	d.isPausedBy(m, successor)
}

// The pause does not wait for a valid version.
func testPausedInvalid(d *configMapFixture, successor func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	d.begins()
	d.brings(m)
	d.settles()
	d.follows("A")
	invalid := d.here(in(m, "type: ConditionSets\n"))
	d.isPausedBy(invalid, successor)
	invalid = invalid.DeepCopy()
	invalid.Annotations = nil
	d.brings(invalid)
	for name, pol := range d.known {
		testkit.Check(d.t, !strings.Contains(pol.rule.Hold, "paused"), "%s is on hold after the pause: %s", name, pol.rule.Hold)
	}
}

// isPausedBy checks that a version with the annotation pauses the sets, for the next leader too.
func (d *configMapFixture) isPausedBy(m *corev1.ConfigMap, successor func() *configMapFixture) {
	d.t.Helper()
	m.Annotations = map[string]string{v1alpha1.PausedAnnotation: "true"}
	d.brings(d.here(m))
	d.settles()
	testkit.Check(d.t, len(d.known) > 0, "no sets are in force")
	for leader, of := range map[string]*configMapFixture{"this": d, "the next": successor()} {
		if leader == "the next" {
			of.begins(m)
			of.settles()
		}
		for name, pol := range of.known {
			if status := of.statusFor(pol, triage.Population{}, 1, nil); status.Mode != v1alpha1.Paused || pol.rule.Hold != "paused by annotation" {
				d.t.Errorf("%s leader has set %s in mode %s, and its rule is on hold: %q", leader, name, status.Mode, pol.rule.Hold)
			}
		}
	}
}

// A problem is reported once, and again later while it lasts.
func testToldAgain(d *configMapFixture, _ func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", "type: ConditionSets\n"))
	wide := d.here(configMapWith("wide", "u2", fileOf("A", "NoSchedule")))
	d.makeUnhealthy(10)
	d.begins()
	d.brings(m)
	d.brings(wide)
	began := d.now
	for d.now.Sub(began) < 150*time.Minute {
		d.now = d.now.Add(10 * time.Minute)
		d.runRound()
	}
	d.tells(3, "conditionSets is missing")
	d.tells(3, "set A: 10 of 10 selected nodes")
	d.tells(6, "not accepted, nothing of it is in force")
	d.brings(in(m, fileOf("B", "PreferNoSchedule")+"  dryRun: true\n"))
	d.settles()
	d.now = d.now.Add(2 * engine.ReportRefusalEvery)
	d.runRound()
	d.tells(3, "conditionSets is missing")
}

// twoKeys returns a ConfigMap with a set in each of two keys.
func (d *configMapFixture) twoKeys() *corev1.ConfigMap {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	m.Data["more.yaml"] = strings.Replace(fileOf("B", "NoSchedule"), "Disk", "Fan", 1)
	return m
}

func testKeyStrays(d *configMapFixture, successor func() *configMapFixture) {
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
		unrecognized := m.DeepCopy()
		unrecognized.Data["more.yaml"] = test.text
		d.brings(unrecognized)
		d.settles()
		d.follows("A", "B")
		d.now = d.now.Add(validateConfigMapsEvery)
		d.makeUnhealthy(0) // causes a change
		d.runRound()
		d.settles()
		d.follows("A", "B")
		if d.told(test.told) == 0 || !d.isBehind(m) {
			d.t.Errorf("%s: %q was not Events: %+v", name, test.told, d.events[len(d.events)-1])
		}
		next := successor()
		next.begins(unrecognized)
		next.settles()
		next.follows("A", "B")
	}
	without := m.DeepCopy()
	delete(without.Data, "more.yaml")
	d.brings(without)
	d.settles()
	d.follows("A")
	// The key is not ours any more, whatever its content.
	without.Data["more.yaml"] = "hello"
	d.brings(without)
	d.settles()
	if d.isBehind(m) {
		d.t.Error("a key without sets is treated as a key with sets")
	}
	without.Data["sets.yaml"] = "type: ConditionSets\nconditionSets: []\n"
	d.brings(without)
	d.settles()
	d.follows()
}

// An Event names all problems, up to its maximum length.
func testManyWrong(d *configMapFixture, _ func() *configMapFixture) {
	const head = "type: ConditionSets\nconditionSets:\n"
	var text strings.Builder
	text.WriteString(head)
	for _, kind := range []string{"A", "B", "C", "D"} {
		text.WriteString(strings.TrimPrefix(strings.Replace(fileOf(kind, "NoSchedule"), "Disk", "Ready", 1), head))
	}
	m := d.here(configMapWith("policies", "u1", text.String()))
	d.makeUnhealthy(0)
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

// An unchanged set is not reported again when another set changes.
func testUnchangedIsSilent(d *configMapFixture, _ func() *configMapFixture) {
	m := d.twoKeys()
	d.makeUnhealthy(1)
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
	d.tells(2, "set B: ") // no node reports Fan
}

// A new leader finds an API set with precedence over a set in force.
func testFallsLater(d *configMapFixture, successor func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	d.begins()
	d.brings(m)
	d.settles()
	next := successor()
	next.upsert(next.now, setNamed("api", createdAt(1), typed("A"), asking("Heat", "True"), acceptedBefore(1)))
	next.begins(m)
	if next.known["policies/sets.yaml/A"].err == nil || !next.isBehind(m) {
		d.t.Errorf("refused: %v; behind: %t", next.known["policies/sets.yaml/A"].err, next.isBehind(m))
	}
	next.remove(next.now, "api")
	next.runRound()
	next.settles()
	next.follows("A")
	if next.isBehind(m) {
		d.t.Error("the set is in force, and the metric says that something is not")
	}
}

// The revisions are lost in a storm while taints are on the nodes.
func testKeptLostInAStorm(d *configMapFixture, successor func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	for _, has := range []int{9, 10} {
		next := successor()
		next.makeUnhealthy(10)
		for i := range has {
			next.carries(next.nodes[fmt.Sprintf("node-%d", i)].Object, "policies/sets.yaml/A", "example.com/A", corev1.TaintEffectNoSchedule)
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

func testJudgedAfterAnother(d *configMapFixture, _ func() *configMapFixture) {
	first := d.here(configMapWith("first", "u1", fileOf("Same", "NoSchedule")))
	second := d.here(configMapWith("second", "u2", fileOf("Same", "NoSchedule")))
	d.begins()
	d.brings(first)
	d.settles()
	d.brings(second)
	d.tells(1, "key sets.yaml, line 3: set Same: ")
	d.loses(first) // without any time passing
	d.settles()
	d.follows("Same")
	d.keeps(map[types.UID]string{"u2": "Same"})
	// A set in the API conflicts as well, and is deleted.
	d.upsert(d.now, setNamed("api", typed("Third"), asking("Heat", "True")))
	d.runRound()
	third := d.here(configMapWith("third", "u3", strings.Replace(fileOf("Third", "NoSchedule"), "Disk", "Fan", 1)))
	d.brings(third)
	d.tells(1, "set Third: ")
	d.remove(d.now, "api")
	d.configMaps.validateAt, d.configMaps.changed = d.now, true // as takeSets does
	d.runRound()
	d.settles()
	d.follows("Same", "Third")
}

func testBackToForce(d *configMapFixture, _ func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	d.begins()
	d.brings(m)
	d.settles()
	for range 2 { // the same content is not reported again
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

func testTakeover(d *configMapFixture, successor func() *configMapFixture) {
	edited := d.here(configMapWith("edited", "u1", fileOf("Edited", "NoSchedule")))
	gone := d.here(configMapWith("gone", "u2", strings.Replace(fileOf("Gone", "NoSchedule"), "Disk", "Fan", 1)))
	d.makeUnhealthy(1)
	d.begins()
	d.brings(edited)
	d.brings(gone)
	d.settles()
	d.follows("Edited", "Gone")
	d.keeps(map[types.UID]string{"u1": "Edited", "u2": "Gone"})
	next := successor()
	next.makeUnhealthy(9) // does not matter for versions in force
	next.begins(in(edited, "type: ConditionSets\n"))
	next.follows("Edited")
	next.tells(1, "the last good version stays in force")
	next.settles()
	next.keeps(map[types.UID]string{"u1": "Edited"})
	if next.creates.Load() > 0 || len(next.configMaps.deleted) > 0 {
		d.t.Errorf("%d versions were written, %d are leaving", next.creates.Load(), len(next.configMaps.deleted))
	}
}

// Without a revision, the taints of a valid version stay until it is stored.
func testKeptLost(d *configMapFixture, _ func() *configMapFixture) {
	d.onCreate = func(*appsv1.ControllerRevision) error { return errForbidden }
	d.begins(d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule"))))
	d.follows("A")
	d.deliver()
	d.follows("A")
}

func testWarnings(d *configMapFixture, _ func() *configMapFixture) {
	text := strings.Replace(fileOf("A", "NoSchedule"), "Disk\n", "Unheard\n", 1) +
		strings.TrimPrefix(fileOf("B", "NoExecute"), "type: ConditionSets\nconditionSets:\n") + "  maxUnhealthy: 100%\n"
	d.makeUnhealthy(1)
	d.begins()
	d.brings(d.here(configMapWith("policies", "u1", text)))
	d.settles()
	d.tells(1, "accepted and in force; sets: 2; key sets.yaml, line 7: set A: no node reports Unheard")
	d.tells(1, "; key sets.yaml, line 9: set B: 1 of 10 selected nodes")
	d.tells(1, "; key sets.yaml, line 15: set B: 100% lets NoExecute empty")
	d.tells(0, "spec.")
}

// tainted adds an unhealthy node with taints of these rules.
func (d *configMapFixture) tainted(name string, rules ...string) {
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
	d.upsertNode(node)
}

// removes checks which taints of a node are to be removed. Without any, the node must not
// change at all.
func (d *configMapFixture) removes(node string, want ...string) {
	d.t.Helper()
	state := d.nodes[node]
	var got []string
	change := treat.Prepare(state.Object, d.planOf(state), d.now)
	if change != nil {
		for _, removed := range change.Removed {
			got = append(got, removed.Rule.Name)
		}
	}
	if !slices.Equal(got, want) || change != nil && len(want) == 0 {
		d.t.Errorf("of %s %v go, want %v; change %+v", node, got, want, change)
	}
	d.reconcileWoken()
	if isQueued := d.queued[node]; isQueued != (len(want) > 0) && d.loaded {
		d.t.Errorf("%s waits to be written: %t", node, isQueued)
	}
}

func testDenied(d *configMapFixture, successor func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	d.begins()
	d.brings(m)
	d.settles()

	next := successor()
	next.makeUnhealthy(0)
	next.tainted("unhealthy", "gone", "policies/sets.yaml/A", "policies/sets.yaml/Gone", "z-api")
	next.tainted("kept", "policies/sets.yaml/A", "policies/sets.yaml/Gone", "z-api")
	must(d.t, next.inbox.Replace([]any{setNamed("z-api", asking("Fan", "True"))}, "1"))
	next.round(d.t.Context(), next.now)
	if next.loaded {
		d.t.Fatal("it has not waited to know what was kept")
	}
	for range 3 {
		next.handleAccess(revisionAccess{denied: errForbidden})
		next.round(d.t.Context(), next.now)
	}
	if !next.loaded || next.lines("cannot read the sets in configmaps: permission missing") != 1 {
		d.t.Fatalf("loaded: %t; the log:\n%s", next.loaded, &next.log)
	}
	next.handleAccess(revisionAccess{denied: errors.New("another right")})
	if got := next.lines("cannot read the sets in configmaps: permission missing"); got != 2 {
		d.t.Errorf("another right is reported %d times", got-1)
	}
	next.follows("z-api")
	next.removes("unhealthy", "gone")
	next.removes("kept")

	// With the right granted, everything is as usual.
	kept, err := next.configMaps.revisions.List(d.t.Context())
	must(d.t, err)
	next.lists(in(m, "type: ConditionSets\n"))
	next.round(d.t.Context(), next.now)
	next.follows("z-api")
	next.handleAccess(revisionAccess{stored: kept})
	next.round(d.t.Context(), next.now)
	next.follows("A", "z-api")
	next.removes("unhealthy", "gone", "policies/sets.yaml/Gone")
	next.removes("kept", "policies/sets.yaml/Gone")
	next.tells(1, "the last good version stays in force")
	if got := testutil.ToFloat64(next.cfg.Metrics.configMapsRead); got != 1 || next.lines("sets in configmaps followed") != 1 {
		d.t.Errorf("ConfigMaps are followed: %v; the log:\n%s", got, &next.log)
	}
}

// keepUnreadable stores a revision that cannot be parsed.
func (d *configMapFixture) keepUnreadable(m *corev1.ConfigMap) {
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

func testKeptUnreadable(d *configMapFixture, _ func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	d.keepUnreadable(m)
	d.makeUnhealthy(10)
	d.tainted("node-0", "other/sets.yaml/B", "policies/sets.yaml/A", "policies/sets.yaml/Old")
	d.tainted("node-1", "policies/sets.yaml/A")
	d.begins(m) // it exceeds its bound
	d.follows()
	d.tells(1, "taints that its sets have placed stay until there is a good version")
	d.removes("node-0", "other/sets.yaml/B")
	d.removes("node-1")
	d.makeUnhealthy(0)
	d.queued["node-0"] = false // as after the write
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

// The current version is valid and in force before it is stored.
func testKeptUnreadableReplaced(d *configMapFixture, _ func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule")))
	d.keepUnreadable(m)
	d.makeUnhealthy(0)
	d.tainted("node-0", "policies/sets.yaml/Old")
	d.onCreate = func(*appsv1.ControllerRevision) error { return errForbidden }
	d.begins(m)
	d.follows("A")
	d.removes("node-0", "policies/sets.yaml/Old")
}

func testKeptUnreadableGoes(d *configMapFixture, _ func() *configMapFixture) {
	m := d.here(configMapWith("policies", "u1", "type: ConditionSets\n"))
	d.keepUnreadable(m)
	d.tainted("node-0", "policies/sets.yaml/A")
	d.begins(m)
	d.removes("node-0")
	d.loses(m)
	d.removes("node-0", "policies/sets.yaml/A")
	d.settles()
	d.keeps(map[types.UID]string{})
}

func TestTheInboxParsesConfigMaps(t *testing.T) {
	box := newConfigMapInbox(nil)
	must(t, box.Update(configMapWith("good", "u1", fileOf("A", "NoSchedule"))))
	must(t, box.Update(configMapWith("bad", "u2", "type: ConditionSets\n")))
	got := box.Take().Changes
	if good := got["good"].Object; good.err != nil || len(good.version.Sets) != 1 {
		t.Errorf("the good one was read as %+v", good)
	}
	if bad := got["bad"].Object; bad.err == nil || bad.version != nil {
		t.Errorf("the bad one was read as %+v", bad)
	}
	if box.Update(&corev1.Pod{}) == nil {
		t.Error("a pod was taken for a ConfigMap")
	}
}
