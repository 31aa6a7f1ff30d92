package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/treat"
)

const (
	// currentCluster is the only value of the flag -cluster.
	currentCluster = "current"
	// releaseName is the name of the release that the demo installs.
	releaseName = "autohealer"
	// runLabel on the release names the run that has installed it.
	runLabel = "autohealer-demo"

	// crdPrefix and namespacePrefix make names for kubectl.
	crdPrefix, namespacePrefix = "crd/", "namespace/"

	answerTimeout  = 10 * time.Second
	listTimeout    = time.Minute
	installTimeout = 5 * time.Minute
	removeTimeout  = 6 * time.Minute // longer than Helm waits for its Job
)

var (
	crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	setResource = v1alpha1.GroupVersion.WithResource("conditionsets")
)

// inCluster is a run in the cluster of the current kubeconfig.
type inCluster struct {
	// once ends the run after the first report, keep leaves the release installed, defaults applies
	// the default sets.
	once, keep, defaults bool
	// registry, tag, preset and values select images and values of the chart; empty means those of
	// the chart.
	registry, tag, preset, values string
	// pause is the time to stop the demo before it changes the cluster.
	pause time.Duration
	// patience limits the wait for reports of agents and statuses.
	patience time.Duration
	// root is the folder of the repository.
	root string
	// kubeconfig is the path of the kubeconfig; empty means that of kubectl.
	kubeconfig string

	printer *printer
	context string // of the kubeconfig
	config  *rest.Config
	client  kubernetes.Interface
	dynamic dynamic.Interface
	run     string          // value of runLabel
	existed map[string]bool // objects of leftovers that existed before
	hasRun  bool            // the controller was ready
	// oldFailures are the Events before the installation, of pods that could not be created.
	oldFailures map[types.UID]corev1.Event
	sets        []string // default sets that this run has created
}

// start connects, installs Autohealer if it is not installed, prints reports, and removes what it
// has installed.
func (r *inCluster) start(ctx context.Context, out io.Writer, cluster string) (err error) {
	if cluster != currentCluster {
		return fmt.Errorf("CLUSTER=%s: want %s, the cluster of the current context of the kubeconfig; kubectl config use-context chooses another context; without CLUSTER the demo starts a cluster of its own", cluster, currentCluster)
	}
	r.printer = newPrinter(out)
	r.printer.showsClock = true
	if err := r.connect(ctx); err != nil {
		return err
	}
	found, err := r.installed(ctx)
	if err != nil {
		return err
	}
	if found != "" {
		r.printer.say("Autohealer is already installed, %s: the demo changes nothing and prints what Autohealer sees", found)
		if r.defaults {
			r.printer.say("DEFAULTS=1 has no effect: this installation may act on the sets; apply them yourself: kubectl apply -f deploy/defaults")
		}
		return r.watch(ctx)
	}
	if err := r.mayInstall(ctx); err != nil {
		return err
	}
	r.announce()
	select {
	case <-time.After(r.pause):
	case <-ctx.Done():
		return nil
	}
	r.run = strconv.FormatInt(time.Now().UnixNano(), 36)
	if r.existed, err = r.leftovers(ctx); err != nil {
		return err
	}
	if r.oldFailures, err = r.failures(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.finish(context.WithoutCancel(ctx))) }()
	err = r.install(ctx)
	if err == nil {
		err = r.applyDefaults(ctx)
	}
	if err == nil {
		err = r.watch(ctx)
	}
	if ctx.Err() != nil { // Ctrl-C is the usual end
		return nil
	}
	return err
}

// connect reads the kubeconfig, and prints which cluster it names.
func (r *inCluster) connect(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = r.kubeconfig
	raw, err := rules.Load()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w; set KUBECONFIG to a valid file", err)
	}
	r.context = raw.CurrentContext
	if raw.Contexts[r.context] == nil {
		return fmt.Errorf("the kubeconfig (%s) has no current context %q: set KUBECONFIG to the file of your cluster, or choose a context with kubectl config use-context",
			strings.Join(rules.GetLoadingPrecedence(), ", "), r.context)
	}
	if r.config, err = clientcmd.NewNonInteractiveClientConfig(*raw, r.context, nil, rules).ClientConfig(); err != nil {
		return fmt.Errorf("reading context %s of the kubeconfig: %w", r.context, err)
	}
	r.config.QPS, r.config.Burst, r.config.WarningHandlerWithContext = 50, 100, rest.NoWarnings{}
	if r.client, err = kubernetes.NewForConfig(r.config); err != nil {
		return err
	}
	if r.dynamic, err = dynamic.NewForConfig(r.config); err != nil {
		return err
	}
	return withTimeout(ctx, answerTimeout, func(ctx context.Context) error {
		where := fmt.Sprintf("the API server %s of context %s", r.config.Host, r.context)
		text, err := r.client.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
		if err != nil {
			return fmt.Errorf("%s does not answer: %w; check it with kubectl cluster-info, or choose another context with kubectl config use-context", where, err)
		}
		var version struct{ GitVersion string }
		if err := yaml.Unmarshal(text, &version); err != nil {
			return fmt.Errorf("reading the version of %s: %w", where, err)
		}
		nodes, err := r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("listing the nodes of %s: %w; use a context that may list nodes", where, err)
		}
		r.printer.say("context %s: Kubernetes %s at %s with %s", r.context, version.GitVersion, r.config.Host, count(len(nodes.Items), "node"))
		return nil
	})
}

func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// installed describes an installation of Autohealer, as the check of the chart finds it, or returns
// an empty string.
func (r *inCluster) installed(ctx context.Context) (string, error) {
	role, err := r.client.RbacV1().ClusterRoles().Get(ctx, install.Account, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case apierrors.IsForbidden(err):
		return "", fmt.Errorf("looking for an installation of Autohealer: %w; use a context with the ClusterRole cluster-admin", err)
	case err != nil:
		return "", fmt.Errorf("looking for an installation of Autohealer: %w", err)
	}
	if name := role.Annotations["meta.helm.sh/release-name"]; name != "" {
		return fmt.Sprintf("as release %s in namespace %s", name, role.Annotations["meta.helm.sh/release-namespace"]), nil
	}
	return "without Helm", nil
}

// mayInstall returns an error if the user lacks a right that the installation needs first.
func (r *inCluster) mayInstall(ctx context.Context) error {
	for _, wanted := range []authorizationv1.ResourceAttributes{
		{Verb: "create", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
		{Verb: "create", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
		{Verb: "create", Resource: "namespaces"},
	} {
		review, err := r.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &wanted},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("asking whether context %s may create %s: %w", r.context, wanted.Resource, err)
		}
		if !review.Status.Allowed {
			return fmt.Errorf("the user of context %s may not create %s: use a context with the ClusterRole cluster-admin", r.context, wanted.Resource)
		}
	}
	return nil
}

// announce says what the demo is going to do.
func (r *inCluster) announce() {
	images := "the images that the chart names"
	if r.registry != "" {
		images = "images of " + r.registry
	}
	ending := "Ctrl-C removes it"
	switch {
	case r.keep:
		ending = "it stays installed"
	case r.once:
		ending = "the demo removes it after the first report"
	}
	r.printer.say("installing deploy/chart as release %s in namespace %s, in mode Observe, with %s: a controller, and an agent on each node. Autohealer then changes only conditions of nodes; %s.", releaseName, install.Namespace, images, ending)
	if r.pause > 0 {
		r.printer.say("to change nothing, press Ctrl-C within %s", r.pause)
	}
}

// helm runs Helm in the cluster and in the namespace of the release.
func (r *inCluster) helm(ctx context.Context, args ...string) (string, error) {
	program := filepath.Join(r.root, "bin", "tools", "helm")
	cmd := exec.CommandContext(ctx, program, append(args, "--kube-context="+r.context, "--namespace="+install.Namespace)...)
	// Variables like HELM_KUBEAPISERVER could name another cluster.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(each string) bool { return strings.HasPrefix(each, "HELM_") })
	if r.kubeconfig != "" {
		cmd.Env = append(cmd.Env, "KUBECONFIG="+r.kubeconfig)
	}
	// Ctrl-C is for the demo, which then ends Helm in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("helm %s: %w\n%s", args[0], err, strings.TrimSpace(string(out)))
	}
	return string(out), err
}

// chartValues returns Helm's arguments with the values of the chart. The last ones keep the mode Observe.
func (r *inCluster) chartValues() (args []string) {
	if r.values != "" {
		args = append(args, "--values="+r.values)
	}
	if r.preset != "" {
		args = append(args, "--set=preset="+r.preset)
	}
	for _, name := range []string{"controller", "agent"} {
		if r.registry != "" {
			args = append(args, fmt.Sprintf("--set=images.%s.repository=%s/autohealer-%[1]s", name, strings.TrimSuffix(r.registry, "/")))
		}
		if r.tag != "" {
			args = append(args, fmt.Sprintf("--set-string=images.%s.tag=%s", name, r.tag))
		}
	}
	return append(args, "--set-json=enforce=[]", "--set=guardrails.create=true")
}

// install installs the release, and returns when a controller is ready. Meanwhile it prints the
// progress, and why pods do not start.
func (r *inCluster) install(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, installTimeout, fmt.Errorf("no controller is ready after %s", installTimeout))
	defer cancel()
	installed := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := r.helm(ctx, append([]string{"install", releaseName, filepath.Join(r.root, "deploy", "chart"), "--create-namespace",
			"--labels=" + runLabel + "=" + r.run, "--timeout=" + installTimeout.String()}, r.chartValues()...)...)
		installed <- err
	}()
	defer func() { cancel(); <-done }() // Helm ends before the release is removed
	isInstalled, printed := false, map[string]bool{}
	for {
		pods, err := r.readPods(ctx)
		news := append(slices.Clone(pods.problems), pods.progress())
		if err != nil {
			news = []string{err.Error() + "; retrying"}
		}
		for _, text := range news {
			if !printed[text] && ctx.Err() == nil {
				r.printer.say("%s", text)
				printed[text] = true
			}
		}
		switch {
		case pods.hopeless != "":
			return errors.New(pods.hopeless)
		case isInstalled && pods.ready > 0:
			r.hasRun = true
			return nil
		}
		select {
		case err := <-installed:
			if err != nil {
				return fmt.Errorf("%w\n(values of the chart: VALUES=file)", err)
			}
			isInstalled = true
		case <-ctx.Done():
			return fmt.Errorf("%w%s", context.Cause(ctx), prefixed("; ", strings.Join(pods.problems, "; ")))
		case <-time.After(time.Second):
		}
	}
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// startingPods says how far the pods of the release are.
type startingPods struct {
	controllers, ready, agents, readyAgents int
	// problems are the reasons of pods that do not start. hopeless is one that will not end.
	problems []string
	hopeless string
}

func (p startingPods) progress() string {
	if p.controllers == 0 {
		return "Helm runs a Job that updates the CRDs"
	}
	return fmt.Sprintf("%d of %s ready, %d of %s ready", p.ready, count(p.controllers, "controller"), p.readyAgents, count(p.agents, "agent"))
}

// readPods reads the pods of the release.
func (r *inCluster) readPods(ctx context.Context) (found startingPods, err error) {
	deployment, err := r.client.AppsV1().Deployments(install.Namespace).Get(ctx, install.Account, metav1.GetOptions{})
	if err == nil {
		found.controllers, found.ready = int(*deployment.Spec.Replicas), int(deployment.Status.ReadyReplicas)
	} else if !apierrors.IsNotFound(err) {
		return found, fmt.Errorf("reading the Deployment of the controller: %w", err)
	}
	const ofAutohealer = "app.kubernetes.io/part-of=autohealer"
	sets, err := r.client.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{LabelSelector: ofAutohealer})
	if err != nil {
		return found, fmt.Errorf("listing the DaemonSet of the agents: %w", err)
	}
	for _, set := range sets.Items {
		found.agents += int(set.Status.DesiredNumberScheduled)
		found.readyAgents += int(set.Status.NumberReady)
	}
	pods, err := r.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: ofAutohealer})
	if err != nil {
		return found, fmt.Errorf("listing the pods of Autohealer: %w", err)
	}
	for i := range pods.Items {
		problem, stays := podProblem(&pods.Items[i])
		if problem == "" {
			continue
		}
		found.problems = append(found.problems, problem)
		if stays && pods.Items[i].Namespace == install.Namespace && found.ready == 0 {
			found.hopeless = problem
		}
	}
	events, err := r.failures(ctx)
	for _, uid := range slices.Sorted(maps.Keys(events)) {
		event := events[uid]
		if about := event.InvolvedObject; event.ResourceVersion != r.oldFailures[uid].ResourceVersion {
			found.problems = append(found.problems, fmt.Sprintf("%s %s/%s has no pods: %s", about.Kind, about.Namespace, about.Name, event.Message))
		}
	}
	return found, err
}

// failures returns the Events about objects of Autohealer whose pods cannot be created, for example
// because of a quota. The API server keeps them for an hour.
func (r *inCluster) failures(ctx context.Context) (map[types.UID]corev1.Event, error) {
	events, err := r.client.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "type=Warning,reason=FailedCreate"})
	if err != nil {
		return nil, fmt.Errorf("listing Events: %w", err)
	}
	found := map[types.UID]corev1.Event{}
	for _, event := range events.Items {
		if strings.HasPrefix(event.InvolvedObject.Name, "autohealer-") {
			found[event.UID] = event
		}
	}
	return found, nil
}

// podProblem says why a pod does not start, with the fix, and whether it stays so.
func podProblem(pod *corev1.Pod) (problem string, stays bool) {
	name := fmt.Sprintf("pod %s/%s", pod.Namespace, pod.Name)
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return fmt.Sprintf("%s is not scheduled: %s", name, c.Message), false
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		waiting := c.State.Waiting
		if waiting == nil {
			continue
		}
		switch waiting.Reason {
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
			return fmt.Sprintf("%s cannot pull the image %s: %s: %s. Push the images with make images PUSH=registry/path, and run make demo CLUSTER=current REGISTRY=registry/path; set imagePullSecrets in VALUES=file if the registry needs credentials",
				name, c.Image, waiting.Reason, waiting.Message), waiting.Reason != "ErrImagePull"
		case "CrashLoopBackOff":
			return fmt.Sprintf("%s exits again and again: kubectl -n %s logs %s --previous", name, pod.Namespace, pod.Name), false
		case "ContainerCreating", "PodInitializing":
		default:
			return fmt.Sprintf("%s waits: %s: %s", name, waiting.Reason, waiting.Message), false
		}
	}
	return "", false
}

// applyDefaults creates the default sets, with DEFAULTS=1. Sets that exist stay as they are.
func (r *inCluster) applyDefaults(ctx context.Context) error {
	if !r.defaults {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(r.root, "deploy", "defaults", "conditionsets.yaml"))
	if err != nil {
		return err
	}
	return withTimeout(ctx, stepTimeout, func(ctx context.Context) error {
		for _, each := range strings.Split(string(text), "\n---\n") {
			set := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(each), &set.Object); err != nil {
				return fmt.Errorf("reading deploy/defaults: %w", err)
			}
			if len(set.Object) == 0 {
				continue
			}
			if err := r.createSet(ctx, set); err != nil {
				return fmt.Errorf("creating ConditionSet %s: %w", set.GetName(), err)
			}
		}
		r.printer.say("%s of deploy/defaults are applied", count(len(r.sets), "set"))
		return nil
	})
}

// createSet creates a set. It retries while the webhook does not answer, because the API server
// learns its address after the controller is ready.
func (r *inCluster) createSet(ctx context.Context, set *unstructured.Unstructured) error {
	for {
		_, err := r.dynamic.Resource(setResource).Create(ctx, set, metav1.CreateOptions{})
		switch {
		case err == nil:
			r.sets = append(r.sets, set.GetName())
			return nil
		case apierrors.IsAlreadyExists(err):
			return nil
		case !apierrors.IsInternalError(err):
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// finish removes what this run has installed, or says how, and prints what stays.
func (r *inCluster) finish(ctx context.Context) error {
	uninstall := "helm uninstall " + releaseName + " --namespace " + install.Namespace
	if !r.hasRun {
		uninstall += " --no-hooks"
	}
	if r.keep {
		switch is, err := r.hasRelease(ctx); {
		case err != nil:
			return fmt.Errorf("looking for the release %s: %w", releaseName, err)
		case is && r.hasRun:
			r.printer.say("Autohealer stays installed, in mode Observe. docs/how-to/observe-first.md shows how to let it act. To remove it: %s", uninstall)
			return nil
		case is:
			r.printer.say("the release that failed stays. To remove it: %s", uninstall)
			return nil
		}
	}
	err := withTimeout(ctx, removeTimeout, r.remove)
	if err != nil {
		err = fmt.Errorf("removing Autohealer: %w\nRemove it yourself: %s, see docs/how-to/uninstall.md", err, uninstall)
	}
	now, listErr := r.leftovers(ctx)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	maps.DeleteFunc(now, func(name string, _ bool) bool { return r.existed[name] })
	if len(now) > 0 {
		r.printer.say("these objects stay. To remove them, with all policies:")
		r.printer.print("\n" + deletions(slices.Sorted(maps.Keys(now))))
	}
	if r.hasRun {
		r.printer.say("nodes with an agent keep the folder /var/lib/autohealer-agent with a few kilobytes")
	}
	return err
}

// deletions returns the commands that delete objects. Namespaces come first: Kubernetes takes minutes
// to delete one while CRDs are deleted.
func deletions(objects []string) string {
	var commands strings.Builder
	for _, prefix := range []string{namespacePrefix, crdPrefix} {
		names := slices.DeleteFunc(slices.Clone(objects), func(name string) bool { return !strings.HasPrefix(name, prefix) })
		if len(names) > 0 {
			fmt.Fprintf(&commands, "  kubectl delete %s\n", strings.Join(names, " \\\n    "))
		}
	}
	return commands.String()
}

// hasRelease reports whether this run has installed a release, also one that failed.
func (r *inCluster) hasRelease(ctx context.Context) (bool, error) {
	out, err := r.helm(ctx, "list", "--short", "--selector="+runLabel+"="+r.run)
	return strings.TrimSpace(out) == releaseName, err
}

// remove removes the release of this run, and no other.
func (r *inCluster) remove(ctx context.Context) error {
	if is, err := r.hasRelease(ctx); err != nil || !is {
		return err
	}
	r.printer.say("removing release %s", releaseName)
	for _, name := range r.sets {
		if err := r.dynamic.Resource(setResource).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting ConditionSet %s: %w", name, err)
		}
	}
	args := []string{"uninstall", releaseName}
	if !r.hasRun { // the Job could wait for an image that cannot be pulled
		args = append(args, "--no-hooks")
	}
	if _, err := r.helm(ctx, args...); err != nil {
		return err
	}
	return errors.Join(r.removeHooks(ctx), r.removeConditions(ctx))
}

// removeHooks removes the objects of a Job that did not succeed. Helm keeps them.
func (r *inCluster) removeHooks(ctx context.Context) error {
	var errs []error
	for _, kind := range []schema.GroupVersionResource{
		{Group: "batch", Version: "v1", Resource: "jobs"}, {Version: "v1", Resource: "serviceaccounts"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
	} {
		objects := r.dynamic.Resource(kind).Namespace(install.Namespace)
		if strings.HasPrefix(kind.Resource, "cluster") {
			objects = r.dynamic.Resource(kind)
		}
		background := metav1.DeletePropagationBackground
		err := objects.Delete(ctx, "autohealer-crds", metav1.DeleteOptions{PropagationPolicy: &background})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("deleting autohealer-crds of %s: %w", kind.Resource, err))
		}
	}
	return errors.Join(errs...)
}

// removeConditions removes the conditions that only agents have written.
func (r *inCluster) removeConditions(ctx context.Context) error {
	nodes, err := r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	var errs []error
	for i := range nodes.Items {
		node := &nodes.Items[i]
		var deletions []string
		for _, condition := range treat.AgentConditions(node) {
			deletions = append(deletions, fmt.Sprintf(`{"$patch": "delete", "type": %q}`, condition))
		}
		if len(deletions) == 0 {
			continue
		}
		patch := fmt.Appendf(nil, `{"status": {"conditions": [%s]}}`, strings.Join(deletions, ", "))
		_, err := r.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("removing the conditions of the agent from node %s: %w", node.Name, err))
		}
	}
	return errors.Join(errs...)
}

// leftovers returns which objects exist of those that Helm does not delete with a release.
func (r *inCluster) leftovers(ctx context.Context) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	crds, err := deploy.CRDNames()
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, group := range []struct {
		resource schema.GroupVersionResource
		prefix   string
		names    []string
	}{
		{crdResource, crdPrefix, crds},
		{corev1.SchemeGroupVersion.WithResource("namespaces"), namespacePrefix, []string{install.Namespace, "medik8s-leases"}},
	} {
		for _, name := range group.names {
			_, err := r.dynamic.Resource(group.resource).Get(ctx, name, metav1.GetOptions{})
			if err == nil {
				found[group.prefix+name] = true
			} else if !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("reading %s%s: %w", group.prefix, name, err)
			}
		}
	}
	return found, nil
}
