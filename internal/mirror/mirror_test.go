package mirror_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/mirror"
	"github.com/resourcestack/autohealer/internal/status"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
)

type (
	spec    = v1alpha1.RepairPolicySpec
	state   = v1alpha1.RepairPolicyStatus
	wanted  = mirror.Wanted[spec, state]
	content = mirror.Content[spec, state]
)

// fixture writes mirrors to a real API server. The test plays the watch and the goroutine that owns
// the mirrors.
type fixture struct {
	client.Client
	t        *testing.T
	mirrors  *mirror.Mirrors[spec, state]
	statuses *status.Writer
	log      strings.Builder
	now      time.Time
}

func TestMirrors(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	crd := testkit.Value(deploy.CRD("repairpolicies.autohealer.resourcestack.com")).Must(t)
	testkit.Value(cluster.KubectlApply(t.Context(), string(crd))).Must(t)
	testkit.Value(cluster.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=30s", "crd/repairpolicies.autohealer.resourcestack.com")).Must(t)
	scheme := runtime.NewScheme()
	testkit.Must(t, v1alpha1.AddToScheme(scheme))
	api := testkit.Value(client.New(cluster.AdminConfig(), client.Options{Scheme: scheme})).Must(t)
	for name, test := range map[string]func(*fixture){
		"are written, changed and deleted":                   (*fixture).writes,
		"are written again after their deletion":             (*fixture).writesAgain,
		"are not written if a user's object has the name":    (*fixture).sparesUsers,
		"are deleted although the watch delivers them later": (*fixture).deletesLate,
	} {
		t.Run(name, func(t *testing.T) {
			f := &fixture{Client: api, t: t, now: time.Now()}
			f.mirrors = mirror.New[spec, state](treat.NewWriter(api), "RepairPolicy", "repairpolicies", "NodePool")
			f.statuses = status.NewWriter(10*time.Second, func(string, treat.Outcome) {}, slog.New(slog.NewTextHandler(&f.log, nil)))
			test(f)
		})
	}
}

// send starts the write of what the mirrors should say: the number of nodes by name.
func (f *fixture) send(nodes map[string]int32) {
	f.now = f.now.Add(time.Minute) // no write waits for another
	mirrors := map[string]wanted{}
	for name, n := range nodes {
		mirrors[name] = wanted{
			Owner: &metav1.OwnerReference{APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: name, UID: "u"}, IsStale: true,
			Content: func(*mirror.Mirror[spec, state]) *content {
				return &content{spec{NodePool: name, Repair: v1alpha1.RepairSpec{Termination: v1alpha1.Forceful}}, state{Nodes: n, UnhealthyNodes: []v1alpha1.UnhealthyNode{}}}
			},
		}
	}
	f.mirrors.Write(f.t.Context(), f.now, f.statuses, mirrors)
}

// answers takes in the answers to all writes, and returns how many there were.
func (f *fixture) answers() (writes int) {
	f.statuses.Wait()
	for {
		select {
		case result := <-f.statuses.Results():
			result()
			writes++
		default:
			return writes
		}
	}
}

// get returns an object, nil for none.
func (f *fixture) get(name string) *v1alpha1.RepairPolicy {
	f.t.Helper()
	object := &v1alpha1.RepairPolicy{}
	err := f.Get(f.t.Context(), client.ObjectKey{Name: name}, object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	testkit.Must(f.t, err)
	return object
}

// watches delivers an object as a watch does.
func (f *fixture) watches(name string) {
	f.t.Helper()
	if object := f.get(name); object != nil {
		f.mirrors.Observe(object, object.Spec, object.Status)
		return
	}
	f.mirrors.Remove(name)
}

func (f *fixture) writes() {
	f.send(map[string]int32{"a": 3})
	f.answers()
	is := f.get("a")
	testkit.Require(f.t, is != nil && mirror.Is(is) && is.Labels[v1alpha1.MirrorLabel] == "NodePool" && is.OwnerReferences[0].Name == "a" && is.Spec.NodePool == "a" && is.Status.Nodes == 3,
		"the mirror is %+v\n%s", is, &f.log)
	f.watches("a")
	f.send(map[string]int32{"a": 3})
	testkit.Check(f.t, f.answers() == 0, "an unchanged mirror was written")
	f.send(map[string]int32{"a": 4})
	f.answers()
	testkit.Check(f.t, f.get("a").Status.Nodes == 4 && f.get("a").Generation == is.Generation, "a new status changed %+v", f.get("a"))
	f.send(nil)
	f.answers()
	testkit.Check(f.t, f.get("a") == nil, "it is still there")
}

func (f *fixture) writesAgain() {
	f.send(map[string]int32{"b": 1})
	f.answers()
	f.watches("b")
	f.send(map[string]int32{"b": 2})
	f.statuses.Wait() // the answer comes after the watch
	testkit.Must(f.t, f.Delete(f.t.Context(), f.get("b")))
	f.watches("b")
	f.answers()
	f.send(map[string]int32{"b": 2})
	f.answers()
	testkit.Check(f.t, f.get("b") != nil && f.get("b").Status.Nodes == 2, "it is not there again: %+v", f.get("b"))
}

func (f *fixture) sparesUsers() {
	testkit.Must(f.t, f.Create(f.t.Context(), &v1alpha1.RepairPolicy{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: spec{NodePool: "other"}}))
	before := f.get("c")
	f.send(map[string]int32{"c": 1}) // the watch has not delivered it
	f.answers()
	f.send(nil)
	f.answers()
	testkit.Same(f.t, f.get("c").ResourceVersion, before.ResourceVersion, "the version of the user's policy")
	testkit.Check(f.t, strings.Contains(f.log.String(), "status not written"), "the log is %s", &f.log)
}

func (f *fixture) deletesLate() {
	f.send(map[string]int32{"d": 1})
	f.answers()
	f.send(nil) // its UID is not known yet
	f.answers()
	testkit.Check(f.t, f.get("d") != nil, "it was deleted without a look")
	f.watches("d")
	f.send(nil)
	f.answers()
	testkit.Check(f.t, f.get("d") == nil, "it is still there")
}
