package e2e

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// killPoint is a write during which the controller is killed.
type killPoint struct {
	name       string
	match      func(*heldRequest) bool
	deliveries []delivery
}

type delivery string

const (
	never delivery = "before the API server receives it"
	late  delivery = "and it arrives after the next controller has started"
	after delivery = "after the API server has stored it"
)

var everyDelivery = []delivery{never, after, late}

var killPoints = []killPoint{
	{"creates the ledger", createsLedger, []delivery{never, late, after}}, // once created it exists
	{"takes over the ledger", updatesLedger, everyDelivery},
	{"names a node in the ledger", names, everyDelivery},
	{"places NoExecute", placesNoExecute, everyDelivery},
	{"places NoSchedule", placesNoSchedule, everyDelivery},
	{"removes a taint", removesTaint, everyDelivery},
	{"writes a status", writesStatus, []delivery{after, late}},
	{"writes an Event", writesEvent, []delivery{after, late}},
}

// testKilled runs one long storm. Each controller continues where the previous one was
// killed, has something of every kind to write, and is killed during a write.
func testKilled(w *scope) {
	const count, unhealthy, news = 60, 40, 8
	p := w.newProxy(w.name)
	nodes := w.createNodes(testbed.Nodes{Count: count})
	tired := w.createNodes(testbed.Nodes{Count: 2 * news, First: count + 1, Labels: map[string]string{"pool": "weak"}})
	w.createSet("set", evict(almostHalf), among(metav1.LabelSelectorOpDoesNotExist))
	w.createSet("weak", among(metav1.LabelSelectorOpExists))
	w.releaseLeadership()
	w.makeUnhealthy(append(nodes[:unhealthy:unhealthy], tired[:news]...))
	// turnOver makes the nodes recover that have been unhealthy longest, which frees their
	// slots, and makes other nodes unhealthy, so that every kind of write is due.
	turnOver := func() {
		w.recover(append(nodes[:news:news], tired[:news]...))
		w.makeUnhealthy(append(nodes[unhealthy:unhealthy+news:unhealthy+news], tired[news:]...))
		nodes = append(nodes[news:], nodes[:news]...)
		tired = append(tired[news:], tired[:news]...)
	}

	launch, slow := w.killDuring(p, killPoints, turnOver, func(heldRequests) {})
	launch()
	w.deliver(slow, 0)
	w.counts(w.key("set"), 29, unhealthy-29)
	w.counts(w.key("weak"), 0, news)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 29, Fallbacks: 11, Removals: news})
}

// killDuring kills a controller at every point, with every delivery of the write, and changes
// the nodes after each. Meanwhile runs while a controller has not sent the write yet. It
// returns how to start the next controller, and the writes that are delivered after that.
func (w *scope) killDuring(p proxy, points []killPoint, turnOver func(), meanwhile func(heldRequests)) (launch func(), slow []*heldRequest) {
	w.t.Helper()
	var controller *install.Controller
	launch = func() {
		if controller == nil {
			controller = w.start(install.Options{Args: p.Args(alone)})
		} else {
			w.restart(controller.Part)
		}
	}
	kills := 0
	for _, point := range points {
		for _, fate := range point.deliveries {
			w.t.Logf("killed during the write that %s, %s", point.name, fate)
			holding := p.hold(point.match, 0)
			launch()
			meanwhile(holding)
			holding.wait(w, 1)
			w.deliver(slow, 0)
			slow = nil
			if fate == after {
				w.deliver(holding.All(), 0)
			}
			w.kill(controller)
			kills++
			holding.Close()
			if fate == late {
				slow = holding.All()
			}
			turnOver()
		}
	}
	w.t.Logf("%d kills", kills)
	return launch, slow
}

// among makes a set select nodes in any pool, or in none.
func among(op metav1.LabelSelectorOperator) func(*v1alpha1.ConditionSetSpec) {
	return func(s *v1alpha1.ConditionSetSpec) {
		s.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "pool", Operator: op}}
	}
}

// testKilledOverLease kills two controllers during writes to the leader's lease. Their
// writes arrive when the next controller is running.
func testKilledOverLease(w *scope) {
	p := w.newProxy(w.name)
	w.releaseLeadership()
	w.createNodes(unhealthyFromStart(20))
	w.createSet("set", evict(almostHalf))
	var controller *install.Controller
	var slow []*heldRequest
	for i, match := range []func(*heldRequest) bool{claimsLease, renewsLease} {
		holding := p.hold(match, 0)
		if i == 0 {
			controller = w.start(install.Options{Args: p.Args(install.Elected()...)})
		} else {
			w.restart(controller.Part)
			w.deliver(slow, 0)
			w.expireLease()
		}
		holding.wait(w, 1)
		w.kill(controller)
		w.expireLease()
		holding.Close()
		slow = holding.All()
	}
	w.restart(controller.Part)
	w.counts(w.key("set"), 9, 11)
	w.deliver(slow, http.StatusConflict)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 9, Fallbacks: 11})
}
