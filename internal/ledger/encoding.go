package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/resourcestack/autohealer/internal/format"
	"github.com/resourcestack/autohealer/internal/ownership"
)

// Version is the version of the stored format. Ledgers without a version are older: each of
// their entries has one rule, by name. A controller that does not know versions refuses a
// ledger with a version.
const Version = 1

// maxBytes limits the size of the ledger. The API server accepts a ConfigMap of 1 MiB.
const maxBytes = 1_000_000

// contents is the decoded content of the ConfigMap.
type contents struct {
	holder string
	grants []Entry
	// kept are entries of kinds that this version does not know, and unknown are unknown
	// fields. They are written back unchanged.
	kept    []UnknownEntry
	unknown format.Unknown
}

// storedContents is the stored form of contents. Many entries have the same rules with long
// names, and a node has one entry for all of its rules. So the names are listed once, and
// entries refer to them by index.
type storedContents struct {
	Version int              `json:"version"`
	Holder  string           `json:"holder"`
	Rules   []ownership.Rule `json:"rules,omitempty"`
	Grants  []storedEntry    `json:"grants"`
}

// storedEntry represents entries that differ only in their rules.
type storedEntry struct {
	Rule ruleIndexes `json:"rule"`
	record
}

// ruleIndexes are indexes into storedContents.Rules.
type ruleIndexes struct {
	indexes []int
	name    *ownership.Rule // in ledgers without a version
}

func (p ruleIndexes) MarshalJSON() ([]byte, error) { return json.Marshal(p.indexes) }

func (p *ruleIndexes) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte(`"`)) {
		return json.Unmarshal(text, &p.name)
	}
	return json.Unmarshal(text, &p.indexes)
}

// UnmarshalJSON keeps unknown fields.
func (e *storedEntry) UnmarshalJSON(text []byte) error {
	type plain storedEntry
	unknown, err := format.Read(text, (*plain)(e))
	e.Unknown = unknown
	return err
}

// MarshalJSON writes unknown fields back.
func (e storedEntry) MarshalJSON() ([]byte, error) {
	type plain storedEntry
	return format.Write(plain(e), e.Unknown)
}

func parse(text []byte) (contents, error) {
	var s storedContents
	unknown, err := format.Read(text, &s)
	if err != nil {
		return contents{}, err
	}
	if s.Holder == "" {
		return contents{}, errors.New("it names no holder")
	}
	p := contents{holder: s.Holder, unknown: unknown}
	add := func(r record, rule ownership.Rule) {
		r.Rule = rule
		switch e := r.entry().(type) {
		case UnknownEntry:
			p.kept = append(p.kept, e)
		default:
			p.grants = append(p.grants, e)
		}
	}
	for i, stored := range s.Grants {
		if stored.Rule.name != nil {
			add(stored.record, *stored.Rule.name)
			continue
		}
		if len(stored.Rule.indexes) == 0 { // a kind of entry without rules
			add(stored.record, ownership.Rule{})
		}
		for _, at := range stored.Rule.indexes {
			if at < 0 || at >= len(s.Rules) {
				return contents{}, fmt.Errorf("grants[%d] is of rule %d, and the page has %d rules", i, at, len(s.Rules))
			}
			add(stored.record, s.Rules[at])
		}
	}
	return p, nil
}

func (p contents) encode() []byte {
	s := storedContents{Version: Version, Holder: p.holder, Grants: []storedEntry{}}
	rules, records := map[ownership.Rule]int{}, map[record]int{}
	add := func(r record) {
		rule := r.Rule
		r.Rule = ownership.Rule{}
		at, isThere := records[r]
		if !isThere {
			at = len(s.Grants)
			records[r] = at
			s.Grants = append(s.Grants, storedEntry{Rule: ruleIndexes{indexes: []int{}}, record: r})
		}
		if rule == (ownership.Rule{}) {
			return
		}
		index, isNamed := rules[rule]
		if !isNamed {
			index = len(s.Rules)
			rules[rule] = index
			s.Rules = append(s.Rules, rule)
		}
		s.Grants[at].Rule.indexes = append(s.Grants[at].Rule.indexes, index)
	}
	for _, e := range p.grants {
		add(e.record())
	}
	for _, e := range p.kept {
		add(e.record())
	}
	text, err := format.Write(s, p.unknown)
	if err != nil {
		panic("encoding the ledger: " + err.Error()) // these types always encode
	}
	return text
}

// Room is the free space in the ledger. It never counts fewer bytes than the entries will
// need.
type Room struct {
	left  int
	rules map[ownership.Rule]bool
}

// Room returns the free space in a ledger without entries of this version. A nil ledger has
// no content at all.
func (l *Ledger) Room() *Room {
	r := &Room{left: maxBytes, rules: map[ownership.Rule]bool{}}
	if l != nil {
		empty := contents{holder: l.holder, kept: l.kept, unknown: l.unknown}
		r.left -= len(empty.encode()) + len(`"rules":[],`)
		for key, text := range l.stored.Data {
			if key != dataKey {
				r.left -= len(text)
			}
		}
	}
	return r
}

// Add takes space for entries that must be in the ledger.
func (r *Room) Add(entries ...Entry) {
	var last record
	for i, e := range entries {
		is := e.record()
		if !r.rules[is.Rule] {
			r.rules[is.Rule] = true
			r.left -= sizeOf(is.Rule) + len(",")
		}
		r.left -= len("1000000,") // its rule index
		is.Rule = ownership.Rule{}
		if i == 0 || is != last {
			r.left -= sizeOf(storedEntry{record: is}) + len(",")
		}
		last = is
	}
}

// Take takes space for all of the entries, if there is enough. It reports whether there was.
func (r *Room) Take(entries ...Entry) bool {
	left := r.left
	fresh := make([]ownership.Rule, 0, len(entries))
	for _, e := range entries {
		if rule := e.record().Rule; !r.rules[rule] {
			fresh = append(fresh, rule)
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
		panic("encoding the ledger: " + err.Error()) // these types always encode
	}
	return len(text)
}
