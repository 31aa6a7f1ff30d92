package e2e

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// killPoint is a write over which the controller is killed.
type killPoint struct {
	name       string
	match      func(*heldRequest) bool
	deliveries []delivery
}

type delivery string

const (
	never delivery = "is never made"
	late  delivery = "is made when an heir is at work"
	after delivery = "has been made, and nobody was told"
)

var everyDelivery = []delivery{never, after, late}

var killPoints = []killPoint{
	{"creating the ledger", createsLedger, []delivery{never, late, after}}, // once made it is there
	{"claiming the ledger", updatesLedger, everyDelivery},
	{"naming in the ledger", names, everyDelivery},
	{"placing NoExecute", placesNoExecute, everyDelivery},
	{"placing NoSchedule", placesNoSchedule, everyDelivery},
	{"removing a taint", removesTaint, everyDelivery},
	{"telling a status", tellsStatus, []delivery{after, late}},
	{"telling an Event", tellsEvent, []delivery{after, late}},
}

// testKilled goes through one long storm. Each heir finds what the one before has
// left, is given something new of everything to do, and is killed over it.
func testKilled(w *scope) {
	const count, sick, news = 60, 40, 8
	p := w.newProxy(w.name)
	nodes := w.createNodes(testbed.Nodes{Count: count})
	tired := w.createNodes(testbed.Nodes{Count: 2 * news, First: count + 1, Labels: map[string]string{"pool": "weak"}})
	w.createSet("set", evict(almostHalf), among(metav1.LabelSelectorOpDoesNotExist))
	w.createSet("weak", among(metav1.LabelSelectorOpExists))
	w.releaseLeadership()
	w.fallSick(append(nodes[:sick:sick], tired[:news]...))
	// turnOver lets those who have been sick the longest recover, which frees their
	// places, and others fall sick: there is something of every kind to be written.
	turnOver := func() {
		w.recover(append(nodes[:news:news], tired[:news]...))
		w.fallSick(append(nodes[sick:sick+news:sick+news], tired[news:]...))
		nodes = append(nodes[news:], nodes[:news]...)
		tired = append(tired[news:], tired[:news]...)
	}

	var controller *install.Controller
	launch := func() {
		if controller == nil {
			controller = w.start(install.Options{Args: p.Args(alone)})
		} else {
			w.restart(controller.Part)
		}
	}
	var slow []*heldRequest // to be delivered when the next heir is at work
	kills := 0
	for _, blow := range killPoints {
		for _, fate := range blow.deliveries {
			w.t.Logf("killed over %s, which %s", blow.name, fate)
			box := p.hold(blow.match, 0)
			launch()
			box.wait(w, 1)
			w.deliver(slow, 0)
			slow = nil
			if fate == after {
				w.deliver(box.All(), 0)
			}
			w.kill(controller)
			kills++
			box.Close()
			if fate == late {
				slow = box.All()
			}
			turnOver()
		}
	}
	launch()
	w.deliver(slow, 0)
	w.counts(w.key("set"), 29, sick-29)
	w.counts(w.key("weak"), 0, news)
	w.t.Logf("%d kills", kills)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 29, Fallbacks: 11, Removals: news})
}

// among makes a set select nodes that are in some pool, or in none.
func among(op metav1.LabelSelectorOperator) func(*v1alpha1.ConditionSetSpec) {
	return func(s *v1alpha1.ConditionSetSpec) {
		s.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "pool", Operator: op}}
	}
}

// testKilledOverLease kills two over the lease of the leader. What they have sent
// arrives when the next one is at work.
func testKilledOverLease(w *scope) {
	p := w.newProxy(w.name)
	w.releaseLeadership()
	w.createNodes(sickFromBirth(20))
	w.createSet("set", evict(almostHalf))
	var controller *install.Controller
	var slow []*heldRequest
	for i, match := range []func(*heldRequest) bool{claimsLease, renewsLease} {
		box := p.hold(match, 0)
		if i == 0 {
			controller = w.start(install.Options{Args: p.Args(install.Elected()...)})
		} else {
			w.restart(controller.Part)
			w.deliver(slow, 0)
			w.expireLease()
		}
		box.wait(w, 1)
		w.kill(controller)
		w.expireLease()
		box.Close()
		slow = box.All()
	}
	w.restart(controller.Part)
	w.counts(w.key("set"), 9, 11)
	w.deliver(slow, http.StatusConflict)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 9, Fallbacks: 11})
}
