package explore

import (
	"hash/maphash"
	"math/bits"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// The explorer recognizes a state that it has seen before by a hash of everything that
// decides what happens next: the API objects, what is on its way, and the whole memory of
// every replica. The hash follows the memory by reflection, so a new field of the engine, of
// the core or of a treatment counts without a change here.
//
// Two states count as the same if they differ only in
//   - numbers of versions: a version counts by its object and the number of newer versions,
//   - times: they count relative to now in units of grid, and all times longer ago than
//     forgotten count as one,
//   - the fields below.

// skippedFields do not decide what the controller does, or refer back to an owner that is
// hashed already.
var skippedFields = map[string]bool{
	"engine.Engine.cfg": true, "engine.Engine.statuses": true, "engine.Engine.write": true, "engine.Engine.startedAt": true,
	"engine.Engine.failureLog": true, "engine.Engine.retiredRules": true,
	"engine.taskRunner.engine": true, "engine.taskRunner.checks": true, "engine.ledgerWriter.engine": true, "engine.taskSlot.tr": true,
	"engine.Node.Reported": true, "engine.Node.firstFindings": true, "engine.Failure.Text": true,
	"engine.TaskResult.Err": true, "engine.TaskResult.IsRepeated": true, "engine.unansweredTask.result": true, // what is left to report
	"ledger.Ledger.client": true,
	"watch.Inbox.signal":   true, "watch.Optional.source": true, "watch.Optional.sample": true, "watch.Kinds.Client": true, "watch.Kind.stop": true,
	"taint.Writer.host": true, "taint.Writer.metrics": true, "taint.nodeWrite.writer": true, "taint.nodeWrite.rate": true, "taint.nodeWrite.reportedRefusals": true, "taint.nodeWrite.unanswered": true,
	"remediation.Treatment.host": true, "remediation.Treatment.requesters": true, "remediation.Treatment.templates": true, "remediation.Work.remediations": true,
	"nodehealthcheck.Policy.host": true, "nodehealthcheck.Policy.metrics": true, "nodehealthcheck.Policy.remediations": true,
	"nodehealthcheck.check.object": true, "nodehealthcheck.check.rule": true, "nodehealthcheck.check.status": true, "nodehealthcheck.check.accepted": true,
	"guardrails.Policy.host": true, "guardrails.Policy.metrics": true, "guardrails.Policy.defaults": true, "guardrails.Policy.rails": true,
	"guardrails.Policy.status": true, "guardrails.Policy.now": true, "guardrails.Policy.accepted": true,
	"explore.fixedRules.host": true, "explore.fixedRules.rules": true,
	"triage.Core.now": true, "triage.Core.symbols": true, "triage.Core.allNodes": true, "triage.Core.reported": true, "triage.Core.absent": true,
	"triage.Core.index": true, "triage.Core.dirty": true, "triage.Core.woken": true, "triage.Core.wokenHead": true, "triage.Core.freeEpisodes": true, "triage.Core.work": true,
	"triage.episode.node": true, "triage.episode.inlineClocks": true, "triage.rule.spec": true, "triage.rule.definition": true, "triage.rule.pool": true,
	"triage.node.failureDomains": true, "triage.failureDomain.failed": true, // they follow from the failures of the nodes
	"triage.departure.episode": true, "triage.departure.replacement": true, "triage.departure.rule": true,
}

// skippedTypes have no content that counts. The queues of the core follow from its episodes.
var skippedTypes = map[string]bool{
	"triage.queue": true, "triage.queueItem": true, "sync.Mutex": true, "sync.WaitGroup": true, "treat.Event": true,
}

// forgotten is how long ago times count as one.
const forgotten = quietAfter

// hasher hashes the state of one cluster at one moment.
type hasher struct {
	model *model
	now   time.Time
	known map[target]uint64 // 0 while the target is being hashed
}

// target is what a pointer refers to. A struct and its first field have the same address.
type target struct {
	at     unsafe.Pointer
	typeID uint64
}

// walker hashes the value at an address.
type walker func(h *hasher, at unsafe.Pointer) uint64

var (
	walkers     sync.Map // walker by reflect.Type
	stringSeed  = maphash.MakeSeed()
	timeType    = reflect.TypeFor[time.Time]()
	typeOfError = reflect.TypeFor[error]()
	lastTypeID  atomic.Uint64
)

// mix combines two hashes; the order counts.
func mix(a, b uint64) uint64 {
	high, low := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xd6e8feb86659fd93)
	return high ^ low
}

// value hashes a value that a pointer refers to.
func (h *hasher) value(pointer any) uint64 {
	v := reflect.ValueOf(pointer)
	return walkerOf(v.Type().Elem())(h, v.UnsafePointer())
}

// walkerOf returns the walker of a type.
func walkerOf(t reflect.Type) walker {
	if w, is := walkers.Load(t); is {
		return w.(walker)
	}
	// Types refer to themselves, so the walker is found again when it runs.
	var once sync.Once
	var made walker
	lazy := walker(func(h *hasher, at unsafe.Pointer) uint64 {
		once.Do(func() { made = newWalker(t) })
		return made(h, at)
	})
	w, _ := walkers.LoadOrStore(t, lazy)
	return w.(walker)
}

func nothing(*hasher, unsafe.Pointer) uint64 { return 1 }

// nameOf returns the package and the name of a type, without type parameters.
func nameOf(t reflect.Type) string {
	name, _, _ := strings.Cut(t.Name(), "[")
	path := t.PkgPath()
	return path[strings.LastIndex(path, "/")+1:] + "." + name
}

func newWalker(t reflect.Type) walker {
	switch {
	case skippedTypes[nameOf(t)]:
		return nothing
	case t == timeType:
		return func(h *hasher, at unsafe.Pointer) uint64 { return h.time(*(*time.Time)(at)) }
	}
	switch t.Kind() {
	case reflect.Bool, reflect.Int8, reflect.Uint8:
		return func(_ *hasher, at unsafe.Pointer) uint64 { return uint64(*(*uint8)(at)) }
	case reflect.Int16, reflect.Uint16:
		return func(_ *hasher, at unsafe.Pointer) uint64 { return uint64(*(*uint16)(at)) }
	case reflect.Int32, reflect.Uint32, reflect.Float32:
		return func(_ *hasher, at unsafe.Pointer) uint64 { return uint64(*(*uint32)(at)) }
	case reflect.Int, reflect.Int64, reflect.Uint, reflect.Uint64, reflect.Float64, reflect.Uintptr:
		return func(h *hasher, at unsafe.Pointer) uint64 { return h.number(*(*int64)(at)) }
	case reflect.String:
		return func(h *hasher, at unsafe.Pointer) uint64 { return h.text(*(*string)(at)) }
	case reflect.Pointer:
		return pointerWalker(t)
	case reflect.Struct:
		return structWalker(t)
	case reflect.Slice, reflect.Array:
		return listWalker(t)
	case reflect.Map:
		return mapWalker(t)
	case reflect.Interface:
		return interfaceWalker(t)
	}
	return nothing // functions and channels
}

// number hashes a number. The core stores times as numbers.
func (h *hasher) number(n int64) uint64 {
	const aTime = int64(9e17) // nanoseconds since 1970, in 1998
	if n > aTime && n < 2*aTime {
		return h.time(time.Unix(0, n))
	}
	return uint64(n)
}

// time hashes a time relative to now.
func (h *hasher) time(t time.Time) uint64 {
	if t.IsZero() {
		return 3
	}
	ago := h.now.Sub(t)
	if ago > forgotten {
		return 5
	}
	return mix(7, uint64(int64((ago+time.Hour)/grid)))
}

func pointerWalker(t reflect.Type) walker {
	walk, id := walkerOf(t.Elem()), lastTypeID.Add(1)
	return func(h *hasher, at unsafe.Pointer) uint64 {
		p := target{*(*unsafe.Pointer)(at), id}
		if p.at == nil {
			return 11
		}
		if sum, is := h.known[p]; is {
			if sum == 0 {
				panic("the memory of a replica refers back to " + t.String() + ": add the field to skippedFields")
			}
			return sum
		}
		h.known[p] = 0
		sum := mix(13, walk(h, p.at)) | 1
		h.known[p] = sum
		return sum
	}
}

func structWalker(t reflect.Type) walker {
	type field struct {
		offset uintptr
		walk   walker
	}
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		switch kind := f.Type.Kind(); {
		case skippedFields[nameOf(t)+"."+f.Name], kind == reflect.Chan, kind == reflect.Func:
		case kind == reflect.Struct && f.Type.Size() == 0:
		default:
			fields = append(fields, field{f.Offset, walkerOf(f.Type)})
		}
	}
	return func(h *hasher, at unsafe.Pointer) uint64 {
		sum := uint64(17)
		for _, f := range fields {
			sum = mix(sum, f.walk(h, unsafe.Add(at, f.offset)))
		}
		return sum
	}
}

func listWalker(t reflect.Type) walker {
	element, size := walkerOf(t.Elem()), t.Elem().Size()
	isArray := t.Kind() == reflect.Array
	length := 0
	if isArray {
		length = t.Len()
	}
	return func(h *hasher, at unsafe.Pointer) uint64 {
		n, first := length, at
		if !isArray {
			list := (*struct {
				data unsafe.Pointer
				n    int
				cap  int
			})(at)
			n, first = list.n, list.data
		}
		sum := mix(19, uint64(n))
		for i := range n {
			sum = mix(sum, element(h, unsafe.Add(first, uintptr(i)*size)))
		}
		return sum
	}
}

// mapWalker adds the hashes of the entries, because a map has no order.
func mapWalker(t reflect.Type) walker {
	key, value := walkerOf(t.Key()), walkerOf(t.Elem())
	return func(h *hasher, at unsafe.Pointer) uint64 {
		m := reflect.NewAt(t, at).Elem()
		if m.Len() == 0 {
			return 23
		}
		sum := uint64(29)
		k, v := reflect.New(t.Key()), reflect.New(t.Elem())
		for entries := m.MapRange(); entries.Next(); {
			k.Elem().SetIterKey(entries)
			v.Elem().SetIterValue(entries)
			sum += mix(key(h, k.UnsafePointer()), value(h, v.UnsafePointer()))
		}
		return sum
	}
}

func interfaceWalker(t reflect.Type) walker {
	if t == typeOfError {
		return nothing
	}
	return func(h *hasher, at unsafe.Pointer) uint64 {
		v := reflect.NewAt(t, at).Elem().Elem()
		if !v.IsValid() {
			return 31
		}
		held := reflect.New(v.Type())
		held.Elem().Set(v)
		return mix(37, walkerOf(v.Type())(h, held.UnsafePointer()))
	}
}

// text hashes a text. Versions and times in it count as they do elsewhere.
func (h *hasher) text(s string) uint64 {
	sum, from := uint64(41), 0
	for i := 0; i+6 <= len(s); i++ {
		if !isDigit(s[i]) {
			continue
		}
		end := i
		for end < len(s) && isDigit(s[end]) {
			end++
		}
		switch {
		case end-i == 6:
			sum = mix(mix(sum, maphash.String(stringSeed, s[from:i])), h.version(s[i:end]))
			from = end
		case end-i == 4 && len(s) >= i+len(time.RFC3339)-len("07:00") && s[end] == '-' && s[i+10] == 'T':
			end = i + len("2006-01-02T15:04:05")
			if t, err := time.Parse("2006-01-02T15:04:05", s[i:end]); err == nil {
				sum = mix(mix(sum, maphash.String(stringSeed, s[from:i])), h.time(t))
				from = end
			}
		}
		i = end
	}
	return mix(sum, maphash.String(stringSeed, s[from:]))
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

// version hashes a version by its object and the number of newer versions.
func (h *hasher) version(digits string) uint64 {
	version := 0
	for _, d := range []byte(digits) {
		version = version*10 + int(d-'0')
	}
	if version <= firstVersion || version > h.model.version {
		return uint64(version)
	}
	key, newer := h.model.age(version)
	return mix(maphash.String(stringSeed, key.kind), mix(maphash.String(stringSeed, key.name), uint64(newer)))
}

// fingerprint returns the hash of the state of a cluster. The cluster must be settled.
func (c *cluster) fingerprint() uint64 {
	h := &hasher{model: c.model, now: time.Now(), known: make(map[target]uint64, 512)}
	sum := h.value(&c.model.objects)
	for _, r := range c.replicas {
		sum = mix(sum, uint64(r.id))
		if r.hasEnded {
			continue
		}
		sum = mix(sum, h.value(r.stepper.Engine))
		for _, kind := range c.streamKinds() {
			sum = mix(sum, h.stream(r.streams[kind]))
		}
		sum = mix(sum, h.value(&r.reads))
	}
	for _, r := range c.waiting {
		sum = mix(sum, h.request(r))
	}
	var late uint64 // orphans have no order
	for _, r := range c.orphans {
		late += h.request(r)
	}
	sum = mix(sum, h.value(&c.starts))
	if c.scenario.isWindowed() {
		sum = mix(sum, uint64(inWindow(h.now)))
	}
	return mix(mix(sum, late), mix(h.order(c), h.value(&c.isQuiet)))
}

// stream hashes what a watch is going to deliver.
func (h *hasher) stream(s *stream) uint64 {
	sum := mix(h.value(&s.needsList), h.value(&s.isHeld))
	for i := range s.events {
		object := s.events[i].after
		if object == nil {
			object = s.events[i].deleted
		}
		sum = mix(sum, h.text(object.GetName()+" "+object.GetResourceVersion()))
	}
	return sum
}

// request hashes a request.
func (h *hasher) request(r *request) uint64 {
	sum := mix(h.text(r.label), mix(h.value(&r.isHeld), h.time(r.sentAt)))
	if r.object != nil {
		sum = mix(sum, h.value(&r.object))
	}
	text := string(r.patch)
	return mix(sum, h.text(text))
}

// order hashes the order in which everything arrives that is not held.
func (h *hasher) order(c *cluster) (sum uint64) {
	for _, next := range c.onTheirWay() {
		sum = mix(sum, maphash.String(stringSeed, next.String()))
	}
	return sum
}
