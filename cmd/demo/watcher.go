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

// controllerName is the reporting controller of Autohealer's Events.
const controllerName = "autohealer-controller"

// watcher watches a cluster as any user can, and prints the changes.
type watcher struct {
	printer *printer

	mu      sync.Mutex
	state   state
	breach  error         // first exceeded bound
	changed chan struct{} // closed and replaced at each change

	cancel context.CancelFunc
	loops  sync.WaitGroup
}

// watchCluster returns a watcher that has listed everything that kinds follows. ctx limits the
// initial lists; the watches run until stop.
func watchCluster(ctx context.Context, config *rest.Config, printer *printer, kinds func(ctx context.Context, w *watcher, c client.WithWatch) []cache.InformerSynced) (*watcher, error) {
	types := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(types), v1alpha1.AddToScheme(types), remediationv1alpha1.AddToScheme(types), karpenter.AddToScheme(types)); err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: types})
	if err != nil {
		return nil, fmt.Errorf("making a client to watch with: %w", err)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w := &watcher{printer: printer, state: newState(), changed: make(chan struct{}), cancel: cancel}
	if !cache.WaitForCacheSync(ctx.Done(), kinds(running, w, c)...) {
		w.stop()
		return nil, fmt.Errorf("listing the watched kinds: %w", context.Cause(ctx))
	}
	return w, nil
}

// demoKinds returns what follows the cluster of the demo and prints its changes. Karpenter's kinds
// are watched only with Karpenter.
func demoKinds(withKarpenter bool) func(ctx context.Context, w *watcher, c client.WithWatch) []cache.InformerSynced {
	return func(ctx context.Context, w *watcher, c client.WithWatch) []cache.InformerSynced {
		synced := []cache.InformerSynced{
			follow(ctx, w, c, &corev1.NodeList{}, w.seeNode),
			follow(ctx, w, c, &corev1.PodList{}, w.seePod),
			follow(ctx, w, c, &appsv1.DeploymentList{}, w.seeDeployment),
			follow(ctx, w, c, &v1alpha1.ConditionSetList{}, w.seeSet),
			follow(ctx, w, c, &remediationv1alpha1.NodeHealthCheckList{}, w.seeCheck),
			follow(ctx, w, c, remediations(), w.seeRemediation),
			follow(ctx, w, c, &v1alpha1.RepairPolicyList{}, w.seePolicy),
			follow(ctx, w, c, &v1alpha1.GuardrailsList{}, w.seeGuardrails),
			follow(ctx, w, c, &eventsv1.EventList{}, w.seeEvent),
		}
		if withKarpenter {
			synced = append(synced, follow(ctx, w, c, &karpenter.NodeClaimList{}, w.seeClaim))
		}
		return synced
	}
}

// remediations returns an empty list of remediation objects, with metadata only.
func remediations() client.ObjectList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(remediator.GroupVersion.WithKind(remediator.Kind.Kind + "List"))
	return list
}

// stop ends the watches.
func (w *watcher) stop() {
	w.cancel()
	w.loops.Wait()
}

// follow calls see for every change of one kind: with the old object, nil if it is new, and
// the new object, nil if it was deleted.
func follow[T client.Object](ctx context.Context, w *watcher, c client.WithWatch, kind client.ObjectList, see func(was, is T)) cache.InformerSynced {
	empty := func() client.ObjectList { return kind.DeepCopyObject().(client.ObjectList) }
	show := func(was, is any) {
		before, _ := was.(T)
		after, _ := is.(T)
		w.mu.Lock()
		defer w.mu.Unlock()
		see(before, after)
		close(w.changed)
		w.changed = make(chan struct{})
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
	w.loops.Go(func() { informer.RunWithContext(ctx) })
	return informer.HasSynced
}

func (w *watcher) seeNode(was, is *corev1.Node) {
	update(w.state.nodes, was, is)
	if w.breach == nil {
		w.breach = w.state.exceeded()
	}
	if was != nil && is == nil {
		w.printer.line(was.Name, "the node was deleted")
	}
	if was == nil || is == nil {
		return
	}
	others := w.printer.isInteractive()
	for _, change := range conditionChanges(was, is) {
		switch {
		case others:
			w.printer.resetClock()
			w.printer.line(is.Name, "%s", change)
		case strings.HasPrefix(change, "Ready=") || is.Name == agentNode: // the demo itself wrote the others
			w.printer.line(is.Name, "%s", change)
		}
	}
	for _, change := range taintChanges(was.Spec.Taints, is.Spec.Taints) {
		switch {
		case strings.Contains(change, karpenter.UnregisteredTaint): // every new node of Karpenter has it
		case strings.Contains(change, kubernetesTaint) && is.Labels[karpenter.NodePoolLabel] != "": // likewise; Ready shows the same
		case strings.Contains(change, kubernetesTaint):
			w.printer.once(is.Name, change)
		default:
			w.printer.line(is.Name, "%s", change)
		}
	}
}

// kubernetesTaint is the prefix of taints that Kubernetes places on nodes that are not
// Ready.
const kubernetesTaint = "node.kubernetes.io/"

func (w *watcher) seePod(was, is *corev1.Pod) {
	w.state.setPod(was, is)
	w.printMoves()
}

func (w *watcher) seeDeployment(was, is *appsv1.Deployment) {
	update(w.state.deployments, was, is)
	w.printMoves()
}

// printMoves prints where pods moved, once all of them run.
func (w *watcher) printMoves() {
	if moves := w.state.takeMoves(); moves != "" {
		w.printer.line("pods", "%s", moves)
	}
}

func (w *watcher) seeSet(was, is *v1alpha1.ConditionSet) {
	update(w.state.sets, was, is)
	if change := policyChange("set", was, is); change != "" && w.printer.isInteractive() {
		w.printer.resetClock()
		w.printer.line(cmp.Or(is, was).Name, "%s", change)
	}
	if was == nil || is == nil {
		return
	}
	if countsChanged(was, is) {
		w.printer.line(is.Name, "%s", setSummary(is))
	}
	for _, node := range is.Status.Nodes {
		if !hasEvent(node.Reason) && !listsMatched(was, node) {
			w.printer.quote(node.Name, node.Reason, "ConditionSet/"+is.Name+": "+node.Message)
		}
	}
}

func (w *watcher) seeCheck(was, is *remediationv1alpha1.NodeHealthCheck) {
	update(w.state.checks, was, is)
	if change := policyChange("health check", was, is); change != "" && w.printer.isInteractive() {
		w.printer.resetClock()
		w.printer.line(cmp.Or(is, was).Name, "%s", change)
	}
	if was == nil || is == nil {
		return
	}
	if after := checkSummary(is); checkSummary(was) != after && (unhealthySummary(was) != unhealthySummary(is) || w.printer.isInteractive()) {
		w.printer.line(is.Name, "%s", after)
	}
	for _, node := range is.Status.UnhealthyNodes {
		if isStatusOnly(node.Reason) && !listsUnhealthy(was, node) {
			w.printer.quote(node.Name, node.Reason, "NodeHealthCheck/"+is.Name+": "+node.Message)
		}
	}
}

func (w *watcher) seePolicy(was, is *v1alpha1.RepairPolicy) {
	update(w.state.policies, was, is)
	if change := policyChange("repair policy", was, is); change != "" && w.printer.isInteractive() {
		w.printer.resetClock()
		w.printer.line(cmp.Or(is, was).Name, "%s", change)
	}
	if was == nil || is == nil {
		return
	}
	if before, after := policySummary(was), policySummary(is); before != after {
		w.printer.line(is.Name, "%s", after)
	}
}

func (w *watcher) seeGuardrails(was, is *v1alpha1.Guardrails) {
	w.state.guardrails = is
	if was != nil && is != nil && railsSummary(was) != railsSummary(is) {
		w.printer.line("guardrails", "%s", railsSummary(is))
	}
}

func (w *watcher) seeClaim(was, is *karpenter.NodeClaim) {
	update(w.state.claims, was, is)
	switch {
	case was == nil:
		w.printer.line(poolOf(is), "NodeClaim %s was created", is.Name)
	case is == nil:
		w.printer.line(poolOf(was), "NodeClaim %s is gone", was.Name)
	case was.DeletionTimestamp == nil && is.DeletionTimestamp != nil:
		w.printer.line(poolOf(is), "NodeClaim %s is being deleted%s", is.Name, deadline(is))
	}
}

func (w *watcher) seeRemediation(was, is *metav1.PartialObjectMetadata) {
	w.state.setRemediation(was, is)
	switch {
	case was == nil:
		w.printer.line("API server", "%s %s was created", remediator.Kind.Kind, is.Name)
	case is == nil:
		w.printer.line("API server", "%s %s is gone", remediator.Kind.Kind, was.Name)
	}
}

func (w *watcher) seeEvent(_, is *eventsv1.Event) {
	if is == nil || !slices.Contains([]string{controllerName, agentSource, diskWatchSource}, is.ReportingController) {
		return
	}
	if isRepeated(is) {
		return
	}
	w.state.events[eventKey{is.Regarding.Name, is.Reason}]++
	w.printer.quote(is.Regarding.Name, is.Reason, is.Note)
}

// isRepeated reports whether an Event repeats one about a node for its policy, claim or pool.
func isRepeated(event *eventsv1.Event) bool {
	return event.Regarding.Kind != "Node" && (!isPolicy(event.Regarding.Kind) || event.Related != nil)
}

// isPolicy reports whether Events about this kind add something to Events about nodes.
func isPolicy(kind string) bool {
	return slices.Contains([]string{remediation.CheckKind, remediation.PolicyKind, poolKind}, kind)
}

// expectation returns a description of what is missing, or an empty string.
type expectation func(s *state) (missing string)

// await waits until all expectations are met at the same time. It fails if a bound is
// exceeded meanwhile.
func (w *watcher) await(ctx context.Context, expectations ...expectation) error {
	for {
		w.mu.Lock()
		changed, breach, missing := w.changed, w.breach, w.state.missing(expectations)
		w.mu.Unlock()
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

// resetEvents forgets the Events so far.
func (w *watcher) resetEvents() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.state.events)
}

// ask evaluates a function on the current state.
func ask[T any](w *watcher, evaluate func(s *state) T) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	return evaluate(&w.state)
}
