package nodeclaim

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/enginetest"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/machine"
	"github.com/resourcestack/autohealer/internal/nodewatch"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testbed"
	installed "github.com/resourcestack/autohealer/internal/testbed/karpenter"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/watch"
)

// claimClusterFixture is a test in a cluster with NodeClaims and without Karpenter.
type claimClusterFixture struct {
	*testing.T
	api client.WithWatch
	// onPatch and onDelete replace the API server's answer, nil for none.
	onPatch, onDelete error
	respect           *dialect.Respect
	mayNotStart       bool   // the engine's answer immediately before the first write
	name              string // of the node and its claim
}

func TestClaimsInACluster(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	scheme := runtime.NewScheme()
	testkit.Must(t, clientgoscheme.AddToScheme(scheme))
	testkit.Must(t, karpenter.AddToScheme(scheme))
	testkit.Must(t, installed.InstallCRDs(t.Context(), cluster))
	api, err := client.NewWithWatch(cluster.AdminConfig(), client.Options{Scheme: scheme})
	testkit.Must(t, err)
	for name, test := range map[string]func(*claimClusterFixture){
		"marked":     (*claimClusterFixture).marked,
		"changed":    (*claimClusterFixture).changed,
		"gone":       (*claimClusterFixture).gone,
		"refused":    (*claimClusterFixture).refused,
		"kept":       (*claimClusterFixture).kept,
		"in-pages":   (*claimClusterFixture).inPages,
		"protected":  (*claimClusterFixture).protected,
		"paused":     (*claimClusterFixture).paused,
		"stale-node": (*claimClusterFixture).nodeChangedSince,
	} {
		t.Run(name, func(t *testing.T) { test(&claimClusterFixture{T: t, api: api, name: name}) })
	}
}

// claim creates a claim with a finalizer, so that it stays after its deletion.
func (y *claimClusterFixture) claim(name string) *karpenter.NodeClaim {
	y.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"nodeClassRef": map[string]any{"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
		"requirements": []any{map[string]any{"key": "kubernetes.io/os", "operator": "In", "values": []any{"linux"}}},
	}}}
	u.SetGroupVersionKind(karpenter.GroupVersion.WithKind("NodeClaim"))
	u.SetName(name)
	u.SetFinalizers([]string{karpenter.TerminationFinalizer})
	testkit.Must(y.T, y.api.Create(y.Context(), u))
	return y.stored(name)
}

func (y *claimClusterFixture) stored(name string) *karpenter.NodeClaim {
	y.Helper()
	c := &karpenter.NodeClaim{}
	testkit.Must(y.T, y.api.Get(y.Context(), client.ObjectKey{Name: name}, c))
	return c
}

// newTask returns the task that terminates the fixture's node.
func (y *claimClusterFixture) newTask() *engine.Task {
	y.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: y.name}}
	testkit.Must(y.T, y.api.Create(y.Context(), node))
	claim := y.claim(y.name)
	mark := markFor(node, claim, &triage.PlannedTreatment{Rule: triage.RuleID{Kind: policykind.Repair, Name: "NodePool/default"}, Since: time.Now()}, machine.Termination{Mode: v1alpha1.Forceful}, time.Now())
	return &engine.Task{Kind: TerminateClaim, Node: nodewatch.Trim(node), Begins: true, Work: &Work{Does: TerminateClaim, Claim: claim, Mark: mark}}
}

// claimResult is the result of a task for a NodeClaim.
type claimResult struct {
	*engine.TaskResult
	*Work
}

// claimWork returns what a task does with a NodeClaim.
func claimWork(t *engine.Task) *Work { return t.Work.(*Work) }

// runs runs a task and checks its result.
func (y *claimClusterFixture) runs(e *engine.Task, want treat.Outcome) claimResult {
	y.Helper()
	f := enginetest.New(y.T, func(cfg *engine.Config) {
		cfg.Client = interceptor.NewClient(y.api, interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
				if y.onPatch != nil {
					return y.onPatch
				}
				return c.Patch(ctx, object, patch, options...)
			},
			Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
				if y.onDelete != nil {
					return y.onDelete
				}
				return c.Delete(ctx, object, options...)
			},
		})
	})
	claimWork(e).claims = New(f, nil)
	f.SetRespect(time.Now(), y.respect)
	if y.mayNotStart {
		f.AnswerStart(func(string) bool { return false })
	}
	r := f.RunTask(y.Context(), y.name, e)
	if r.Outcome != want {
		y.Fatalf("the outcome is %s (%v), want %s", r.Outcome, r.Err, want)
	}
	return claimResult{r, claimWork(e)}
}

func (y *claimClusterFixture) marked() {
	r := y.runs(y.newTask(), treat.Made)
	if is := y.stored(y.name); !r.Deleted || is.DeletionTimestamp == nil || is.Annotations[ownership.MarkAnnotation] == "" {
		y.Errorf("the claim is %+v", is.ObjectMeta)
	}
}

// Another component has changed the claim, so the loop must look at it first.
func (y *claimClusterFixture) changed() {
	e := y.newTask()
	is := y.stored(y.name)
	is.Annotations = map[string]string{karpenter.OurDoNotRepairAnnotation: "true"}
	testkit.Must(y.T, y.api.Patch(y.Context(), is, client.MergeFrom(claimWork(e).Claim)))
	r := y.runs(e, treat.Stale)
	if r.Err != nil || r.Current == nil || r.Current.Annotations[karpenter.OurDoNotRepairAnnotation] != "true" || r.Deleted {
		y.Errorf("the report: %+v", r)
	}
	if is := y.stored(y.name); is.DeletionTimestamp != nil || is.Annotations[ownership.MarkAnnotation] != "" {
		y.Errorf("the claim is %+v", is.ObjectMeta)
	}
}

func (y *claimClusterFixture) gone() {
	e := y.newTask()
	is := y.stored(y.name)
	is.Finalizers = nil
	testkit.Must(y.T, y.api.Patch(y.Context(), is, client.MergeFrom(claimWork(e).Claim)))
	testkit.Must(y.T, y.api.Delete(y.Context(), is))
	if r := y.runs(e, treat.Stale); r.Err != nil || r.Current != nil || !r.Gone || r.Deleted {
		y.Errorf("the report: %+v", r)
	}
}

// A pod protects its node from a termination that has not begun. If the claim has its mark, it has.
func (y *claimClusterFixture) protected() {
	testkit.Must(y.T, client.IgnoreAlreadyExists(y.api.Create(y.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}})))
	testkit.Must(y.T, y.api.Create(y.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", Annotations: map[string]string{"karpenter.sh/do-not-disrupt": "true"}},
		Spec:       corev1.PodSpec{NodeName: y.name, Containers: []corev1.Container{{Name: "main", Image: "example.com/main"}}},
	}))
	y.respect = &dialect.Respect{DoNotDisrupt: true}
	e := y.newTask()
	if r := y.runs(e, treat.Stale); r.Err != nil || !r.Learned || r.Current != nil || r.Deleted {
		y.Errorf("the report: %+v", r)
	}
	is := y.stored(y.name)
	testkit.Check(y.T, is.DeletionTimestamp == nil && is.Annotations[ownership.MarkAnnotation] == "", "the claim is %+v", is.ObjectMeta)
	// Neither does the drain of another client end, unless it is our own.
	forced := *e
	forced.Kind, forced.Begins, forced.Reason.Code = ForceTermination, false, triage.Vetoed
	forced.Work = &Work{Does: ForceTermination, Claim: is, Deadline: treat.Deadline(time.Now())}
	r := y.runs(&forced, treat.Stale)
	testkit.Check(y.T, r.Err == nil && r.Current == nil && r.isProtected, "the end of a drain: %+v", r)
	forced.Reason.Code = triage.Treating
	is = y.runs(&forced, treat.Made).Current
	marked := *e
	marked.HasBegun = true
	marked.Work = &Work{Does: TerminateClaim, Claim: is}
	y.runs(&marked, treat.Made)
}

// The engine has called the termination off meanwhile, for example because a user has paused it.
func (y *claimClusterFixture) paused() {
	y.mayNotStart = true
	r := y.runs(y.newTask(), treat.Stale)
	testkit.Check(y.T, r.Err == nil && r.Learned && r.Current == nil && !r.Deleted, "the report: %+v", r)
	is := y.stored(y.name)
	testkit.Check(y.T, is.DeletionTimestamp == nil && is.Annotations[ownership.MarkAnnotation] == "", "the claim is %+v", is.ObjectMeta)
}

func conflict(name string) error {
	return apierrors.NewConflict(schema.GroupResource{Group: karpenter.GroupVersion.Group, Resource: "nodeclaims"}, name, errors.New("a webhook says so"))
}

// A conflict for an unchanged claim is a refusal by a webhook. Treated as a change, it
// would be retried at once and forever.
func (y *claimClusterFixture) refused() {
	y.onPatch = conflict(y.name)
	begin := y.newTask()
	if r := y.runs(begin, treat.Refused); r.Err == nil || r.Current != nil || r.Gone || r.Deleted {
		y.Errorf("the report: %+v", r)
	}
	e := &engine.Task{Kind: CancelTermination, Node: begin.Node, Work: &Work{Does: CancelTermination, Claim: y.stored(y.name)}}
	if r := y.runs(e, treat.Refused); r.Err == nil || r.Current != nil {
		y.Errorf("the report of the cancellation: %+v", r)
	}
}

// A replica that knows the mark of the new leader, and an older version of the node, keeps the mark.
func (y *claimClusterFixture) nodeChangedSince() {
	begin := y.newTask()
	y.onDelete = conflict(y.name) // the claim only gets its mark
	y.runs(begin, treat.Refused)
	node := &corev1.Node{}
	testkit.Must(y.T, y.api.Get(y.Context(), client.ObjectKey{Name: y.name}, node))
	node.Status.Conditions = []corev1.NodeCondition{{Type: "Broken", Status: corev1.ConditionTrue}}
	testkit.Must(y.T, y.api.Status().Update(y.Context(), node))
	marked := y.stored(y.name)
	e := &engine.Task{Kind: CancelTermination, Node: begin.Node, Work: &Work{Does: CancelTermination, Claim: marked, Mark: claimWork(begin).Mark}}
	r := y.runs(e, treat.Stale)
	testkit.Check(y.T, r.Fresh != nil && y.stored(y.name).Annotations[ownership.MarkAnnotation] != "", "the report: %+v", r)
}

// The same holds for the deletion of a marked claim, which stays marked.
func (y *claimClusterFixture) kept() {
	y.onDelete = conflict(y.name)
	e := y.newTask()
	if r := y.runs(e, treat.Refused); r.Err == nil || r.Current == nil || r.Current.Annotations[ownership.MarkAnnotation] == "" || r.Deleted {
		y.Errorf("the report: %+v", r)
	}
}

// An API server that does not stream lists serves them in pages.
func (y *claimClusterFixture) inPages() {
	for i := range 5 {
		y.claim(fmt.Sprintf("%s-%d", y.name, i))
	}
	list := &karpenter.NodeClaimList{}
	testkit.Must(y.T, y.api.List(y.Context(), list))
	all := len(list.Items)
	source := watch.Source(y.api, func() client.ObjectList { return &karpenter.NodeClaimList{} })
	seen, pages := map[string]bool{}, 0
	options := metav1.ListOptions{Limit: 2}
	for {
		got, err := source.ListWithContext(y.Context(), options)
		testkit.Must(y.T, err)
		page, is := got.(*karpenter.NodeClaimList)
		if !is || len(page.Items) > 2 {
			y.Fatalf("a snapshot is %T with %d claims, want at most 2", got, len(page.Items))
		}
		for i := range page.Items {
			if seen[page.Items[i].Name] {
				y.Fatalf("%s comes twice", page.Items[i].Name)
			}
			seen[page.Items[i].Name] = true
		}
		pages++
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	if len(seen) != all || pages != (all+1)/2 {
		y.Errorf("%d of %d claims came in %d pages", len(seen), all, pages)
	}
}
