package e2e

import (
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// testConfigMapTwin writes sets that duplicate sets in a ConfigMap. The controller starts
// with rights from before it watched the stored revisions.
func testConfigMapTwin(w *scope) {
	w.createNodes(healthyNodes(4))
	role := &rbacv1.Role{}
	testkit.Must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Namespace: install.Namespace, Name: install.Account}, role))
	giveBack := w.withdraw(role, &role.Rules, authorizationv1.ResourceAttributes{
		Verb: "watch", Group: "apps", Resource: "controllerrevisions", Namespace: install.Namespace,
	})
	c := w.guarded(install.Options{})
	d := w.warningClient()
	try := func() error { return d.api.Create(w.t.Context(), w.policy("mine"), client.DryRunAll) }
	twin := func(name string) {
		w.createConfigMap(name, w.configMap(name, "NoSchedule", "KernelDeadlock"), true)
		w.hasRevision(name, name)
		w.eventually("a refusal", func() error { return refused(try(), "the same conditions", "ConfigMap "+w.name+"-"+name) })
		w.deleteConfigMap()
		testkit.Must(w.t, try()) // a remembered revision alone refuses nothing
	}
	twin("one")
	twin("two")
	text := testkit.Value(c.Log()).Must(w.t)
	if got := strings.Count(text, "kept versions of ConfigMaps not watched"); got != 1 {
		w.t.Errorf("the missing watch is logged %d times, want once:\n%s", got, text)
	}
	giveBack()
	_, host, _ := strings.Cut(w.AdminConfig().Host, "//")
	reads := func() float64 {
		return value(w.t, w.scrape(c), fmt.Sprintf(`rest_client_requests_total{code="200",host=%q,method="GET"}`, host))
	}
	w.eventually("a verdict without a request to the API server", func() error {
		before := reads()
		testkit.Must(w.t, try())
		if after := reads(); after != before || after == 0 {
			return fmt.Errorf("%v questions, then %v", before, after)
		}
		return nil
	})
	twin("three")
}
