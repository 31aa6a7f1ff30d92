package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/ownership"
)

// Version is that of the pages that are written. Pages from before there were versions
// have none: each of their entries has one rule, by its name. A controller that does not
// know versions refuses a page that has one.
const Version = 1

// maxBytes bounds a page. The API server takes a ConfigMap of 1 MiB.
const maxBytes = 1_000_000

// page is what the ConfigMap holds.
type page struct {
	holder string
	grants []Entry
	// kept are entries of kinds that this version does not know, and unknown are such
	// fields of the page. They are written back as they are.
	kept    []Entry
	unknown format.Unknown
}

// storedPage is a page as it is stored. Many entries have the same rules, with long names,
// and a node has one entry for all of its rules: so the names stand here, and the entries
// say which of them.
type storedPage struct {
	Version int              `json:"version"`
	Holder  string           `json:"holder"`
	Rules   []ownership.Rule `json:"rules,omitempty"`
	Grants  []storedEntry    `json:"grants"`
}

// storedEntry stands for entries that differ in their rules alone.
type storedEntry struct {
	Rule places `json:"rule"`
	Entry
}

// places are those of rules in the page's list.
type places struct {
	at   []int
	name *ownership.Rule // in pages without a version
}

func (p places) MarshalJSON() ([]byte, error) { return json.Marshal(p.at) }

func (p *places) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte(`"`)) {
		return json.Unmarshal(text, &p.name)
	}
	return json.Unmarshal(text, &p.at)
}

// UnmarshalJSON keeps fields that are not known.
func (e *storedEntry) UnmarshalJSON(text []byte) error {
	type plain storedEntry
	unknown, err := format.Read(text, (*plain)(e))
	e.Unknown = unknown
	return err
}

// MarshalJSON writes them back.
func (e storedEntry) MarshalJSON() ([]byte, error) {
	type plain storedEntry
	return format.Write(plain(e), e.Unknown)
}

// isKnown says whether this version knows what the entry is about.
func (e Entry) isKnown() bool {
	isOfKind := e.ResourceVersion != "" || e.Object != "" || !e.Gone.IsZero() || e.Tries > 0
	return e.Rule.IsKnown() && (isOfKind || e.Unknown == "")
}

func parse(text []byte) (page, error) {
	var s storedPage
	unknown, err := format.Read(text, &s)
	if err != nil {
		return page{}, err
	}
	if s.Holder == "" {
		return page{}, errors.New("it names no holder")
	}
	p := page{holder: s.Holder, unknown: unknown}
	add := func(e Entry, rule ownership.Rule) {
		if e.Rule = rule; e.isKnown() {
			p.grants = append(p.grants, e)
		} else {
			p.kept = append(p.kept, e)
		}
	}
	for i, stored := range s.Grants {
		if stored.Rule.name != nil {
			add(stored.Entry, *stored.Rule.name)
			continue
		}
		if len(stored.Rule.at) == 0 { // of a kind that has none
			add(stored.Entry, ownership.Rule{})
		}
		for _, at := range stored.Rule.at {
			if at < 0 || at >= len(s.Rules) {
				return page{}, fmt.Errorf("grants[%d] is of rule %d, and the page names %d", i, at, len(s.Rules))
			}
			add(stored.Entry, s.Rules[at])
		}
	}
	return p, nil
}

func (p page) text() []byte {
	s := storedPage{Version: Version, Holder: p.holder, Grants: []storedEntry{}}
	rules, entries := map[ownership.Rule]int{}, map[Entry]int{}
	for _, list := range [][]Entry{p.grants, p.kept} {
		for _, e := range list {
			rule := e.Rule
			e.Rule = ownership.Rule{}
			at, isThere := entries[e]
			if !isThere {
				at = len(s.Grants)
				entries[e] = at
				s.Grants = append(s.Grants, storedEntry{Rule: places{at: []int{}}, Entry: e})
			}
			if rule == (ownership.Rule{}) {
				continue
			}
			place, isNamed := rules[rule]
			if !isNamed {
				place = len(s.Rules)
				rules[rule] = place
				s.Rules = append(s.Rules, rule)
			}
			s.Grants[at].Rule.at = append(s.Grants[at].Rule.at, place)
		}
	}
	text, err := format.Write(s, p.unknown)
	if err != nil {
		panic("encoding the ledger: " + err.Error()) // plain values of our own always encode
	}
	return text
}

// Room is what a page can take beside what it holds. It counts no less than the page will
// need.
type Room struct {
	left  int
	rules map[ownership.Rule]bool
}

// Room returns the room of a page that holds nothing but what every page does. With a nil
// ledger that is nothing at all.
func (l *Ledger) Room() *Room {
	r := &Room{left: maxBytes, rules: map[ownership.Rule]bool{}}
	if l != nil {
		empty := page{holder: l.holder, kept: l.kept, unknown: l.unknown}
		r.left -= len(empty.text()) + len(`"rules":[],`)
		for key, text := range l.stored.Data {
			if key != pageKey {
				r.left -= len(text)
			}
		}
	}
	return r
}

// Add takes room for entries that have to be on the page.
func (r *Room) Add(entries ...Entry) {
	for i, e := range entries {
		if !r.rules[e.Rule] {
			r.rules[e.Rule] = true
			r.left -= sizeOf(e.Rule) + len(",")
		}
		r.left -= len("1000000,") // its place
		if i > 0 && isSame(entries[i-1], e) {
			continue
		}
		r.left -= sizeOf(storedEntry{Entry: e}) + len(",")
	}
}

// isSame says whether two entries differ in their rules alone.
func isSame(a, b Entry) bool {
	b.Rule = a.Rule
	return a == b
}

// Take takes room for entries if there is enough for all of them, and says whether there
// was.
func (r *Room) Take(entries ...Entry) bool {
	left := r.left
	fresh := make([]ownership.Rule, 0, len(entries))
	for _, e := range entries {
		if !r.rules[e.Rule] {
			fresh = append(fresh, e.Rule)
		}
	}
	r.Add(entries...)
	if r.left >= 0 {
		return true
	}
	r.left = left
	for _, rule := range fresh {
		delete(r.rules, rule)
	}
	return false
}

func sizeOf(value any) int {
	text, err := json.Marshal(value)
	if err != nil {
		panic("encoding the ledger: " + err.Error()) // plain values of our own always encode
	}
	return len(text)
}
