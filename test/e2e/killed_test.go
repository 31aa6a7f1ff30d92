package e2e

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/history"
	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
)

// blow is a write over which the controller is killed.
type blow struct {
	name  string
	match func(*letter) bool
	fates []fate
}

type fate string

const (
	never fate = "is never made"
	late  fate = "is made when an heir is at work"
	after fate = "has been made, and nobody was told"
)

var everyFate = []fate{never, after, late}

var blows = []blow{
	{"creating the ledger", createsLedger, []fate{never, late, after}}, // once made it is there
	{"claiming the ledger", updatesLedger, everyFate},
	{"naming in the ledger", names, everyFate},
	{"placing NoExecute", placesNoExecute, everyFate},
	{"placing NoSchedule", placesNoSchedule, everyFate},
	{"removing a taint", removesTaint, everyFate},
	{"telling a status", tellsStatus, []fate{after, late}},
	{"telling an Event", tellsEvent, []fate{after, late}},
}

// testKilled goes through one long storm. Each heir finds what the one before has
// left, is given something new of everything to do, and is killed over it.
func testKilled(w *ward) {
	const count, sick, news = 60, 40, 8
	p := w.newPost(w.name)
	nodes := w.admit(testbed.Nodes{Count: count})
	tired := w.admit(testbed.Nodes{Count: 2 * news, First: count + 1, Labels: map[string]string{"pool": "weak"}})
	w.want("set", evict(almostHalf), among(metav1.LabelSelectorOpDoesNotExist))
	w.want("weak", among(metav1.LabelSelectorOpExists))
	w.vacate()
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
	var slow []*letter // to be delivered when the next heir is at work
	kills := 0
	for _, blow := range blows {
		for _, fate := range blow.fates {
			w.t.Logf("killed over %s, which %s", blow.name, fate)
			box := p.keep(blow.match, 0)
			launch()
			box.wait(w, 1)
			w.arrives(slow, 0)
			slow = nil
			if fate == after {
				w.arrives(box.All(), 0)
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
	w.arrives(slow, 0)
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
func testKilledOverLease(w *ward) {
	p := w.newPost(w.name)
	w.vacate()
	w.admit(sickFromBirth(20))
	w.want("set", evict(almostHalf))
	var controller *install.Controller
	var slow []*letter
	for i, match := range []func(*letter) bool{claimsLease, renewsLease} {
		box := p.keep(match, 0)
		if i == 0 {
			controller = w.start(install.Options{Args: p.Args(short...)})
		} else {
			w.restart(controller.Part)
			w.arrives(slow, 0)
		}
		box.wait(w, 1)
		w.kill(controller)
		box.Close()
		slow = box.All()
	}
	w.restart(controller.Part)
	w.counts(w.key("set"), 9, 11)
	w.arrives(slow, http.StatusConflict)
	w.judge(history.Config{AnyTurn: true}, history.Counts{Evictions: 9, Fallbacks: 11})
}
