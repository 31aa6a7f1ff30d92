package repairblock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
)

// waitTimeout is how long a test waits for a change.
const waitTimeout = 30 * time.Second

// bad is a toleration that the schema allows and the check of these tests rejects.
const bad = "13m"

func judge(pool string, block *v1alpha1.RepairSpec) error {
	if block.DefaultTolerationDuration == bad {
		return fmt.Errorf("spec.repair.defaultTolerationDuration: %s brings NodePool %s bad luck.", bad, pool) //nolint:revive // what a verdict says may end in a whole sentence
	}
	return nil
}

// fixture is a cluster with at most one pool. Tests use it one after the other.
type fixture struct {
	*testbed.Cluster
	client    client.WithWatch
	stock     *unstructured.Unstructured
	namespace string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	w := &fixture{Cluster: testbed.New(t, testbed.Config{})}
	w.client = w.connect(t, w.AdminConfig())
	text := testkit.Value(os.ReadFile(stockCRD(t))).Must(t)
	w.stock = &unstructured.Unstructured{}
	testkit.Must(t, yaml.Unmarshal(text, &w.stock.Object))
	if w.stock.GetName() != deploy.NodePoolCRD {
		t.Fatalf("the CRD is %s", w.stock.GetName())
	}
	return w
}

func (w *fixture) connect(t *testing.T, config *rest.Config) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, karpenter.AddToScheme} {
		testkit.Must(t, add(scheme))
	}
	config.WarningHandler = rest.NoWarnings{} // unknown fields are intended
	return testkit.Value(client.NewWithWatch(config, client.Options{Scheme: scheme})).Must(t)
}

// stockCRD is the CRD of NodePools as Karpenter publishes it.
func stockCRD(t *testing.T) string {
	t.Helper()
	for _, folder := range []string{os.Getenv("KUBEBUILDER_ASSETS"), "../../bin/testbed"} {
		if found, _ := filepath.Glob(filepath.Join(folder, ".sources/karpenter-*/pkg/apis/crds/karpenter.sh_nodepools.yaml")); folder != "" && len(found) == 1 {
			return found[0]
		}
	}
	t.Fatal("Karpenter's CRDs are not in bin/testbed/.sources, run make testbed-karpenter")
	return ""
}

// begin gives a test its own namespace, with the schema in place and no pools.
func (w *fixture) begin(t *testing.T) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "blocks-"}}
	testkit.Must(t, w.client.Create(t.Context(), ns))
	w.namespace = ns.Name
	if !w.hasSchema(t) {
		w.applyStock(t)
		w.patchSchema(t)
	}
	t.Cleanup(func() {
		if err := w.client.DeleteAllOf(context.Background(), &karpenter.NodePool{}); err != nil {
			t.Error(err)
		}
	})
}

// await waits for something to become true.
func await(t *testing.T, what string, is func() (ok bool, found string)) {
	t.Helper()
	testkit.Eventually(t, what, func() error {
		if ok, found := is(); !ok {
			return errors.New(found)
		}
		return nil
	})
}

func (w *fixture) crd(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(w.stock.GroupVersionKind())
	testkit.Must(t, client.IgnoreNotFound(w.client.Get(t.Context(), client.ObjectKey{Name: deploy.NodePoolCRD}, crd)))
	return crd
}

// hasSchema reports whether the CRD has the block.
func (w *fixture) hasSchema(t *testing.T) bool {
	t.Helper()
	text := testkit.Value(json.Marshal(w.crd(t).Object["spec"])).Must(t)
	return bytes.Contains(text, []byte("defaultTolerationDuration"))
}

// applyStock does what an upgrade of Karpenter does, and waits until the API server has
// applied it.
func (w *fixture) applyStock(t *testing.T) {
	t.Helper()
	crd := w.stock.DeepCopy()
	err := w.client.Create(t.Context(), crd)
	if apierrors.IsAlreadyExists(err) {
		crd = w.crd(t)
		crd.Object["spec"] = w.stock.DeepCopy().Object["spec"]
		err = w.client.Update(t.Context(), crd)
	}
	testkit.Must(t, err)
	w.awaitServed(t, false)
}

// patchSchema does what the README says, and waits likewise.
func (w *fixture) patchSchema(t *testing.T) {
	t.Helper()
	testkit.Must(t, w.client.Patch(t.Context(), w.stock.DeepCopy(), client.RawPatch(types.JSONPatchType, deploy.NodePoolPatch())))
	w.awaitServed(t, true)
}

// awaitServed waits until the API server stores a block, or does not.
func (w *fixture) awaitServed(t *testing.T, want bool) {
	t.Helper()
	await(t, "the CRD is served", func() (bool, string) {
		try := newPool("probe", "5m")
		err := w.client.Create(t.Context(), try, client.DryRunAll)
		_, kept, _ := unstructured.NestedMap(try.Object, "spec", "repair")
		return err == nil && kept == want, fmt.Sprint(kept, err)
	})
}

// newPool returns a pool with a block that has this default toleration, or without.
func newPool(name, toleration string) *unstructured.Unstructured {
	spec := map[string]any{"template": map[string]any{"spec": map[string]any{
		"nodeClassRef": map[string]any{"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}, "requirements": []any{},
	}}}
	if toleration != "" {
		spec["repair"] = map[string]any{"defaultTolerationDuration": toleration}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

func (w *fixture) create(t *testing.T, name, toleration string) {
	t.Helper()
	testkit.Must(t, w.client.Create(t.Context(), newPool(name, toleration)))
}

// merge patches a pool as a user.
func (w *fixture) merge(t *testing.T, name, patch string) {
	t.Helper()
	testkit.Must(t, w.client.Patch(t.Context(), newPool(name, ""), client.RawPatch(types.MergePatchType, []byte(patch))))
}

func (w *fixture) write(t *testing.T, name, toleration string) {
	t.Helper()
	w.merge(t, name, `{"spec":{"repair":{"defaultTolerationDuration":"`+toleration+`"}}}`)
}

func (w *fixture) remove(t *testing.T, name string) {
	t.Helper()
	w.merge(t, name, `{"spec":{"repair":null}}`)
}

// prune writes the status, as Karpenter often does.
func (w *fixture) prune(t *testing.T, name string) {
	t.Helper()
	testkit.Must(t, w.client.Status().Patch(t.Context(), newPool(name, ""), client.RawPatch(types.MergePatchType, []byte(`{"status":{"nodes":`+strconv.FormatInt(time.Now().UnixNano()%1e9, 10)+`}}`))))
}

// onPool returns the default toleration of the block on a pool.
func (w *fixture) onPool(t *testing.T, name string) string {
	t.Helper()
	pool := newPool(name, "")
	testkit.Must(t, w.client.Get(t.Context(), client.ObjectKey{Name: name}, pool))
	toleration, _, _ := unstructured.NestedString(pool.Object, "spec", "repair", "defaultTolerationDuration")
	return toleration
}

// revisions returns what a new leader would find, by revision.
func (w *fixture) revisions(t *testing.T) []string {
	t.Helper()
	var list appsv1.ControllerRevisionList
	testkit.Must(t, w.client.List(t.Context(), &list, client.InNamespace(w.namespace)))
	var found []string
	for _, r := range list.Items {
		var said struct {
			Pool   string
			Repair v1alpha1.RepairSpec
		}
		testkit.Must(t, json.Unmarshal(r.Data.Raw, &said))
		testkit.Check(t, r.Labels[repairblock.RevisionLabel] == said.Pool && len(r.OwnerReferences) == 0, "the copy is %+v", r.ObjectMeta)
		found = append(found, said.Pool+"="+said.Repair.DefaultTolerationDuration)
	}
	slices.Sort(found)
	return found
}

func (w *fixture) awaitCopies(t *testing.T, want ...string) {
	t.Helper()
	await(t, fmt.Sprintf("the copies are %v", want), func() (bool, string) {
		found := w.revisions(t)
		return slices.Equal(found, want), fmt.Sprint(found)
	})
}

// runningStore is a running store with its log and Events.
type runningStore struct {
	*repairblock.Store
	stop context.CancelFunc

	mu     sync.Mutex
	pools  map[string]*repairblock.Pool
	had    map[types.UID]bool // pools that ever had a block in force
	words  []treat.Event
	tally  repairblock.Counts
	writes map[string]int
	log    testkit.Log
}

// start runs a store until the test ends or stops it.
func (w *fixture) start(t *testing.T, c client.WithWatch, with ...func(*repairblock.Config)) *runningStore {
	t.Helper()
	k := &runningStore{pools: map[string]*repairblock.Pool{}, had: map[types.UID]bool{}, writes: map[string]int{}}
	schema := testkit.Value(deploy.NodePoolSchema()).Must(t)
	cfg := repairblock.Config{
		Client: c, Namespace: w.namespace, Check: judge, Schema: schema,
		Event:   func(word treat.Event) { k.do(func() { k.words = append(k.words, word) }) },
		Wrote:   func(resource string, fate treat.Outcome) { k.do(func() { k.writes[resource+" "+fmt.Sprint(fate)]++ }) },
		Count:   func(tally repairblock.Counts) { k.do(func() { k.tally = tally }) },
		Changed: func() { k.take() },
		Logger:  k.log.Logger(),
	}
	for _, change := range with {
		change(&cfg)
	}
	k.Store = testkit.Value(repairblock.NewStore(cfg)).Must(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); k.Run(ctx) }()
	k.stop = func() { cancel(); <-done }
	t.Cleanup(func() {
		k.stop()
		if t.Failed() {
			t.Logf("the store of %s logged:\n%s", t.Name(), k.log.String())
		}
	})
	return k
}

func (k *runningStore) do(what func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	what()
}

// take does what the controller's loop does.
func (k *runningStore) take() {
	changed, all := k.Take()
	k.do(func() {
		if all {
			k.pools = map[string]*repairblock.Pool{}
		}
		for name, is := range changed {
			if k.pools[name] = is; is == nil {
				delete(k.pools, name)
			} else if is.Block != nil {
				k.had[is.UID] = true
			}
		}
	})
}

// looks returns the state of a pool in one line: the toleration in force, lost, and the
// problem.
func (k *runningStore) looks(name string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	is := k.pools[name]
	if is == nil {
		return "gone"
	}
	line := "none"
	if is.Block != nil {
		line = is.Block.DefaultTolerationDuration
	}
	if is.Lost {
		line += " lost"
	}
	if is.Problem != "" {
		line += ": " + is.Problem
	}
	return line
}

// awaits waits until the state of a pool starts with this text.
func (k *runningStore) awaits(t *testing.T, name, want string) {
	t.Helper()
	await(t, name+" looks like "+want, func() (bool, string) {
		got := k.looks(name)
		if isWhole := !strings.Contains(want, ":"); isWhole {
			return got == want, got
		}
		return strings.HasPrefix(got, want), got
	})
}

// told returns the Events about a pool, without those of a good state.
func (k *runningStore) told(name string) (told []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, word := range k.words {
		if word.Policy.Name == name && word.Policy.Kind == "NodePool" {
			line := names[word.EventReason]
			if word.Failure != "" {
				line += " in trouble"
			}
			told = append(told, line)
		}
	}
	return told
}

// lastWord returns the last Event about a pool.
func (k *runningStore) lastWord(name string) (last treat.Event) {
	k.do(func() {
		for _, word := range k.words {
			if word.Policy.Name == name {
				last = word
			}
		}
	})
	return last
}

var names = map[treat.EventReason]string{
	treat.Accepted: "accepted", treat.RepairBlockRefused: "refused", treat.RepairSchemaLost: "lost", treat.RepairBlockVanished: "vanished", treat.RepairBlockRestored: "restored",
}

func (k *runningStore) tells(t *testing.T, name string, want ...string) {
	t.Helper()
	if got := k.told(name); !slices.Equal(got, want) {
		t.Errorf("told of %s: %v, want %v", name, got, want)
	}
}

func (k *runningStore) counts(t *testing.T, want repairblock.Counts) {
	t.Helper()
	await(t, fmt.Sprintf("the count is %+v", want), func() (bool, string) {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.tally == want, fmt.Sprintf("%+v", k.tally)
	})
}

func (k *runningStore) logs(words string) (times int) {
	k.do(func() { times = strings.Count(k.log.String(), words) })
	return times
}
