package conditionset

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/mirror"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
)

// stored returns a ConditionSet of the API server, nil for none.
func (d *configMapFixture) stored(name string) *v1alpha1.ConditionSet {
	d.t.Helper()
	set := &v1alpha1.ConditionSet{}
	err := d.api.Get(d.t.Context(), client.ObjectKey{Name: name}, set)
	if apierrors.IsNotFound(err) {
		return nil
	}
	must(d.t, err)
	return set
}

// writesStatuses writes statuses and mirrors until nothing changes any more. Statuses change at
// most once per second, so the time of the fixture advances.
func (d *configMapFixture) writesStatuses() {
	d.t.Helper()
	for range 3 {
		d.now = d.now.Add(time.Minute)
		d.WriteStatuses(d.t.Context(), d.now)
		d.statuses.Wait()
		for range len(d.statuses.Results()) {
			(<-d.statuses.Results())()
		}
	}
}

func testMirrorNameTaken(d *configMapFixture, _ func() *configMapFixture) {
	const name = "configmap-policies-sets-yaml-a"
	d.statuses = status.NewWriter(time.Minute, func(string, treat.Outcome) {}, d.cfg.Logger)
	user := setNamed(name, typed("Users"), asking("Fan", "True"))
	user.ObjectMeta = metav1.ObjectMeta{Name: name, Labels: map[string]string{"owner": "user"}}
	must(d.t, d.api.Create(d.t.Context(), user))
	before := d.stored(name)
	must(d.t, d.inbox.Replace([]any{before}, before.ResourceVersion))
	d.takeSets(d.now)
	d.makeUnhealthy(1)
	d.begins()
	d.brings(d.here(configMapWith("policies", "u1", fileOf("A", "NoSchedule"))))
	d.settles()

	d.writesStatuses()
	d.follows("A", "Users")
	after := d.stored(name)
	testkit.Require(d.t, after != nil && after.UID == before.UID, "the user's set is gone: %+v", after)
	testkit.Equal(d.t, "the spec of the user's set", before.Spec, after.Spec)
	testkit.Equal(d.t, "the labels of the user's set", before.Labels, after.Labels)
	testkit.Same(d.t, after.Status.Matched, 0, "the matched nodes of the user's set") // the set of the ConfigMap matches one
	const message = "no ConditionSet shows the status of set policies/sets.yaml/A, because a user's ConditionSet has the name " + name + ": give that one another name"
	d.tells(1, message)
	for _, event := range d.events {
		if event.EventReason == treat.MirrorNameTaken {
			testkit.Check(d.t, event.Message == message && event.Policy.Kind == "ConfigMap" && event.Policy.Name == "policies", "the Event is %+v", event)
		}
	}

	must(d.t, d.api.Delete(d.t.Context(), after.DeepCopy()))
	must(d.t, d.inbox.Delete(after))
	d.takeSets(d.now)
	d.runRound()
	d.writesStatuses()
	d.follows("A")
	shown := d.stored(name)
	testkit.Require(d.t, shown != nil && mirror.Is(shown), "the mirror is %+v; the log:\n%s", shown, &d.log)
	testkit.Same(d.t, shown.Spec.Type, "A", "the set that the mirror shows")
	testkit.Same(d.t, shown.Status.Matched, 1, "the matched nodes of the mirror")
	d.tells(1, message)
}
