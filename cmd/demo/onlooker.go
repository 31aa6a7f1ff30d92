package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/install/remediator"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/remediation"
)

// controllerName is who Events and taints of Autohealer are from.
const controllerName = "autohealer-controller"

// onlooker watches a cluster as any user could, and tells what changes.
type onlooker struct {
	tell *teller

	mu      sync.Mutex
	sight   sight
	breach  error         // a bound that was exceeded, at any moment
	changed chan struct{} // closed, and replaced, when something was seen

	cancel context.CancelFunc
	loops  sync.WaitGroup
}

// watchCluster returns an onlooker that has seen all there is. ctx bounds the
// time until then; the watches last until stop. Karpenter's kinds are watched where it is.
func watchCluster(ctx context.Context, config *rest.Config, tell *teller, withKarpenter bool) (*onlooker, error) {
	kinds := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(kinds), v1alpha1.AddToScheme(kinds), remediationv1alpha1.AddToScheme(kinds), karpenter.AddToScheme(kinds)); err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: kinds})
	if err != nil {
		return nil, fmt.Errorf("making a client to watch with: %w", err)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	o := &onlooker{tell: tell, sight: newSight(), changed: make(chan struct{}), cancel: cancel}
	synced := []cache.InformerSynced{
		follow(running, o, c, &corev1.NodeList{}, o.seeNode),
		follow(running, o, c, &corev1.PodList{}, o.seePod),
		follow(running, o, c, &appsv1.DeploymentList{}, o.seeDeployment),
		follow(running, o, c, &v1alpha1.ConditionSetList{}, o.seeSet),
		follow(running, o, c, &remediationv1alpha1.NodeHealthCheckList{}, o.seeCheck),
		follow(running, o, c, remediations(), o.seeRemediation),
		follow(running, o, c, &v1alpha1.RepairPolicyList{}, o.seePolicy),
		follow(running, o, c, &eventsv1.EventList{}, o.seeEvent),
	}
	if withKarpenter {
		synced = append(synced, follow(running, o, c, &karpenter.NodeClaimList{}, o.seeClaim))
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		o.stop()
		return nil, fmt.Errorf("listing what is to be watched: %w", context.Cause(ctx))
	}
	return o, nil
}

// remediations is the list of what the remediator is asked. What it is asked in
// particular is nobody else's concern.
func remediations() client.ObjectList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(remediator.GroupVersion.WithKind(remediator.Kind.Kind + "List"))
	return list
}

// stop ends the watches.
func (o *onlooker) stop() {
	o.cancel()
	o.loops.Wait()
}

// follow shows every change of one kind, one by one: what was, nil if it is new,
// and what is, nil if it is gone.
func follow[T client.Object](ctx context.Context, o *onlooker, c client.WithWatch, kind client.ObjectList, see func(was, is T)) cache.InformerSynced {
	empty := func() client.ObjectList { return kind.DeepCopyObject().(client.ObjectList) }
	show := func(was, is any) {
		before, _ := was.(T)
		after, _ := is.(T)
		o.mu.Lock()
		defer o.mu.Unlock()
		see(before, after)
		close(o.changed)
		o.changed = make(chan struct{})
	}
	var example T
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				into := empty()
				return into, c.List(ctx, into, &client.ListOptions{Raw: &options})
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return c.Watch(ctx, empty(), &client.ListOptions{Raw: &options})
			},
		},
		ObjectType: example,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(is any) { show(nil, is) },
			UpdateFunc: show,
			DeleteFunc: func(was any) {
				if last, ok := was.(cache.DeletedFinalStateUnknown); ok {
					was = last.Obj
				}
				show(was, nil)
			},
		},
	})
	o.loops.Go(func() { informer.RunWithContext(ctx) })
	return informer.HasSynced
}

func (o *onlooker) seeNode(was, is *corev1.Node) {
	update(o.sight.nodes, was, is)
	if o.breach == nil {
		o.breach = o.sight.exceeded()
	}
	if was != nil && is == nil {
		o.tell.line(was.Name, "the node is gone")
	}
	if was == nil || is == nil {
		return
	}
	others := o.tell.others()
	for _, change := range conditionChanges(was, is) {
		switch {
		case others:
			o.tell.begin()
			o.tell.line(is.Name, "%s", change)
		case strings.HasPrefix(change, "Ready=") || is.Name == probed: // the others are the story's own doing
			o.tell.line(is.Name, "%s", change)
		}
	}
	for _, change := range taintChanges(was.Spec.Taints, is.Spec.Taints) {
		switch {
		case strings.Contains(change, karpenter.UnregisteredTaint): // every node of Karpenter begins like that
		case strings.Contains(change, kubernetesTaint) && is.Labels[karpenter.NodePoolLabel] != "": // and like that; its Ready tells it
		case strings.Contains(change, kubernetesTaint):
			o.tell.once(is.Name, change)
		default:
			o.tell.line(is.Name, "%s", change)
		}
	}
}

// kubernetesTaint begins the keys of taints that Kubernetes places by itself on a
// node that is not ready.
const kubernetesTaint = "node.kubernetes.io/"

func (o *onlooker) seePod(was, is *corev1.Pod) {
	o.sight.setPod(was, is)
	o.tellMoves()
}

func (o *onlooker) seeDeployment(was, is *appsv1.Deployment) {
	update(o.sight.deployments, was, is)
	o.tellMoves()
}

// tellMoves tells where pods have gone, once they have all arrived.
func (o *onlooker) tellMoves() {
	if moves := o.sight.takeMoves(); moves != "" {
		o.tell.line("pods", "%s", moves)
	}
}

func (o *onlooker) seeSet(was, is *v1alpha1.ConditionSet) {
	update(o.sight.sets, was, is)
	if change := policyChange("set", was, is); change != "" && o.tell.others() {
		o.tell.begin()
		o.tell.line(cmp.Or(is, was).Name, "%s", change)
	}
	if was == nil || is == nil {
		return
	}
	if isNews(was, is) {
		o.tell.line(is.Name, "%s", counts(is))
	}
	for _, node := range is.Status.Nodes {
		if !hasEvent(node.Reason) && !lists(was, node) {
			o.tell.quote(node.Name, node.Reason, node.Message)
		}
	}
}

func (o *onlooker) seeCheck(was, is *remediationv1alpha1.NodeHealthCheck) {
	update(o.sight.checks, was, is)
	if change := policyChange("health check", was, is); change != "" && o.tell.others() {
		o.tell.begin()
		o.tell.line(cmp.Or(is, was).Name, "%s", change)
	}
	if was == nil || is == nil {
		return
	}
	if after := health(is); health(was) != after && (ailing(was) != ailing(is) || o.tell.others()) {
		o.tell.line(is.Name, "%s", after)
	}
	for _, node := range is.Status.UnhealthyNodes {
		if isQuiet(node.Reason) && !names(was, node) {
			o.tell.quote(node.Name, node.Reason, node.Message)
		}
	}
}

func (o *onlooker) seePolicy(was, is *v1alpha1.RepairPolicy) {
	update(o.sight.policies, was, is)
	if change := policyChange("repair policy", was, is); change != "" && o.tell.others() {
		o.tell.begin()
		o.tell.line(cmp.Or(is, was).Name, "%s", change)
	}
	if was == nil || is == nil {
		return
	}
	if before, after := tally(was), tally(is); before != after {
		o.tell.line(is.Name, "%s", after)
	}
}

func (o *onlooker) seeClaim(was, is *karpenter.NodeClaim) {
	update(o.sight.claims, was, is)
	switch {
	case was == nil:
		o.tell.line(poolOf(is), "NodeClaim %s is there, for a new machine", is.Name)
	case is == nil:
		o.tell.line(poolOf(was), "NodeClaim %s is gone, and its machine", was.Name)
	case was.DeletionTimestamp == nil && is.DeletionTimestamp != nil:
		o.tell.line(poolOf(is), "NodeClaim %s is being deleted%s", is.Name, deadline(is))
	}
}

func (o *onlooker) seeRemediation(was, is *metav1.PartialObjectMetadata) {
	o.sight.setRemediation(was, is)
	switch {
	case was == nil:
		o.tell.line("API server", "%s %s is there", remediator.Kind.Kind, is.Name)
	case is == nil:
		o.tell.line("API server", "%s %s is gone", remediator.Kind.Kind, was.Name)
	}
}

func (o *onlooker) seeEvent(_, is *eventsv1.Event) {
	if is == nil || !slices.Contains([]string{controllerName, agentSource, diskWatchSource}, is.ReportingController) {
		return
	}
	// What is said of a node is said of its policy, its claim and its pool, too.
	if is.Regarding.Kind != "Node" && (!isPolicy(is.Regarding.Kind) || is.Related != nil) {
		return
	}
	o.sight.words[word{is.Regarding.Name, is.Reason}]++
	o.tell.quote(is.Regarding.Name, is.Reason, is.Note)
}

// isPolicy says whether Events about a kind tell more than those about nodes.
func isPolicy(kind string) bool {
	return slices.Contains([]string{remediation.CheckKind, remediation.PolicyKind, poolKind}, kind)
}

// look says what is missing, nothing if all is as it should be.
type look func(s *sight) (missing string)

// await waits until all looks see what they look for at the same time, with no
// bound exceeded on the way.
func (o *onlooker) await(ctx context.Context, looks ...look) error {
	for {
		o.mu.Lock()
		changed, breach, missing := o.changed, o.breach, o.sight.missing(looks)
		o.mu.Unlock()
		switch {
		case breach != nil:
			return breach
		case len(missing) == 0:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", strings.Join(missing, "; "), context.Cause(ctx))
		}
	}
}

// forgetWords lets Events count only from now on.
func (o *onlooker) forgetWords() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.sight.words)
}

// ask answers a question about what is seen now.
func ask[T any](o *onlooker, question func(s *sight) T) T {
	o.mu.Lock()
	defer o.mu.Unlock()
	return question(&o.sight)
}
