package nodewatch

import (
	"fmt"
	"hash/maphash"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/resourcestack/autohealer/internal/protowatch"
)

// Field numbers in the .proto files of Kubernetes.
const (
	nodeMeta, nodeSpec           = 1, 2 // core/v1 Node
	nodeStatus                   = 3
	metaName, metaUID            = 1, 5 // meta/v1 ObjectMeta
	metaVersion, metaCreated     = 6, 8
	metaDeleted                  = 9
	metaLabels, metaAnnotations  = 11, 12
	specProviderID, specTaints   = 3, 5 // core/v1 NodeSpec
	specUnschedulable            = 4
	statusConditions, statusInfo = 4, 7 // core/v1 NodeStatus
	infoImage                    = 5    // core/v1 NodeSystemInfo
	conditionType                = 1    // core/v1 NodeCondition
	conditionStatus              = 2
	conditionTransition          = 4
	conditionReason              = 5
	entryKey, entryValue         = 1, 2 // of a map
)

// decoder decodes events. It remembers every node, so that it can distinguish a heartbeat from
// a change before it decodes the node.
type decoder struct {
	seed     maphash.Seed
	known    map[string]decoded
	interned map[string]string
	parts    parts
	content  []byte
}

// decoded is the last version of a node, and a hash of its content. The probability that two
// states have the same hash is that of guessing a number of 64 bits.
type decoded struct {
	node *corev1.Node
	sum  uint64
}

func newDecoder() *decoder {
	return &decoder{seed: maphash.MakeSeed(), known: map[string]decoded{}, interned: map[string]string{}}
}

// event decodes an event.
func (d *decoder) event(frame []byte) (event watch.Event, err error) {
	brought, err := protowatch.DecodeEvent(frame)
	event.Type = brought.Type
	if err != nil {
		return event, err
	}
	if status, is, err := brought.Status(); is {
		event.Object = status
		return event, err
	}
	switch {
	case string(brought.Kind) != "Node":
		err = fmt.Errorf("unexpected object of kind %q", brought.Kind)
	case event.Type == watch.Bookmark: // contains only a version and annotations
		node := &corev1.Node{}
		event.Object, err = node, node.Unmarshal(brought.Object)
	default:
		event.Object, err = d.node(brought.Object, event.Type == watch.Deleted)
	}
	return event, err
}

// node decodes a node. A node with unchanged content is a copy of the previous version with
// the new resourceVersion.
func (d *decoder) node(message []byte, last bool) (*corev1.Node, error) {
	p := &d.parts
	if err := p.find(message); err != nil {
		return nil, fmt.Errorf("node %q: %w", p.name, err)
	}
	var err error
	if d.content, err = p.appendContent(d.content[:0]); err != nil {
		return nil, fmt.Errorf("node %q: %w", p.name, err)
	}
	sum := maphash.Bytes(d.seed, d.content)
	before, found := d.known[string(p.name)]
	if found && before.sum == sum {
		again := *before.node
		again.ResourceVersion = string(p.version)
		if last {
			delete(d.known, again.Name)
		}
		return &again, nil
	}
	node, err := d.build(p)
	if err != nil {
		return nil, fmt.Errorf("node %q: %w", p.name, err)
	}
	if last {
		delete(d.known, node.Name)
	} else {
		d.known[node.Name] = decoded{node: node, sum: sum}
	}
	return node, nil
}

// parts are the encoded fields of a node that are used.
type parts struct {
	name, uid, version                      []byte
	created, deleted, providerID            []byte
	unschedulable, image                    []byte
	labels, annotations, taints, conditions [][]byte
}

// find finds the parts in a message without copying.
func (p *parts) find(message []byte) error {
	*p = parts{labels: p.labels[:0], annotations: p.annotations[:0], taints: p.taints[:0], conditions: p.conditions[:0]}
	return protowatch.Fields(message, func(number protowire.Number, value []byte) error {
		switch number {
		case nodeMeta:
			return protowatch.Fields(value, p.findMeta)
		case nodeSpec:
			return protowatch.Fields(value, p.findSpec)
		case nodeStatus:
			return protowatch.Fields(value, p.findStatus)
		}
		return nil
	})
}

func (p *parts) findSpec(number protowire.Number, value []byte) error {
	switch number {
	case specProviderID:
		p.providerID = value
	case specTaints:
		p.taints = append(p.taints, value)
	case specUnschedulable:
		p.unschedulable = value
	}
	return nil
}

func (p *parts) findStatus(number protowire.Number, value []byte) error {
	switch number {
	case statusConditions:
		p.conditions = append(p.conditions, value)
	case statusInfo:
		return protowatch.Fields(value, protowatch.KeepField(infoImage, &p.image))
	}
	return nil
}

func (p *parts) findMeta(number protowire.Number, value []byte) error {
	switch number {
	case metaName:
		p.name = value
	case metaUID:
		p.uid = value
	case metaVersion:
		p.version = value
	case metaCreated:
		p.created = value
	case metaDeleted:
		p.deleted = value
	case metaLabels:
		p.labels = append(p.labels, value)
	case metaAnnotations:
		var key []byte
		if err := protowatch.Fields(value, protowatch.KeepField(entryKey, &key)); err != nil {
			return err
		}
		for _, one := range keptAnnotations {
			if string(key) == one {
				p.annotations = append(p.annotations, value)
			}
		}
	}
	return nil
}

// appendContent appends all parts except the version, in an unambiguous form.
func (p *parts) appendContent(to []byte) ([]byte, error) {
	for _, part := range [...][]byte{p.uid, p.created, p.deleted, p.providerID, p.unschedulable, p.image} {
		to = protowire.AppendBytes(to, part)
	}
	for _, list := range [][][]byte{p.labels, p.annotations, p.taints} {
		to = protowire.AppendVarint(to, uint64(len(list)))
		for _, part := range list {
			to = protowire.AppendBytes(to, part)
		}
	}
	for _, message := range p.conditions {
		var c conditionParts
		if err := protowatch.Fields(message, c.find); err != nil {
			return to, err
		}
		for _, part := range [...][]byte{c.kind, c.status, c.transition, c.reason} {
			to = protowire.AppendBytes(to, part)
		}
	}
	return to, nil
}

// conditionParts are the encoded fields of a condition.
type conditionParts struct{ kind, status, transition, reason []byte }

func (c *conditionParts) find(number protowire.Number, value []byte) error {
	switch number {
	case conditionType:
		c.kind = value
	case conditionStatus:
		c.status = value
	case conditionTransition:
		c.transition = value
	case conditionReason:
		c.reason = value
	}
	return nil
}

// build creates a node from its parts.
func (d *decoder) build(p *parts) (*corev1.Node, error) {
	n := &corev1.Node{}
	n.Name, n.UID, n.ResourceVersion = string(p.name), types.UID(p.uid), string(p.version)
	n.Spec.ProviderID = string(p.providerID)
	unschedulable, _ := protowire.ConsumeVarint(p.unschedulable) // empty means false
	n.Spec.Unschedulable = unschedulable == 1
	n.Status.NodeInfo.OSImage = d.intern(p.image)
	if err := n.CreationTimestamp.Unmarshal(p.created); err != nil {
		return nil, err
	}
	if p.deleted != nil {
		n.DeletionTimestamp = &metav1.Time{}
		if err := n.DeletionTimestamp.Unmarshal(p.deleted); err != nil {
			return nil, err
		}
	}
	var err error
	if n.Labels, err = d.entries(p.labels); err != nil {
		return nil, err
	}
	if n.Annotations, err = d.entries(p.annotations); err != nil {
		return nil, err
	}
	if len(p.taints) > 0 {
		n.Spec.Taints = make([]corev1.Taint, len(p.taints))
	}
	for i, message := range p.taints {
		if err := n.Spec.Taints[i].Unmarshal(message); err != nil {
			return nil, err
		}
	}
	if len(p.conditions) > 0 {
		n.Status.Conditions = make([]corev1.NodeCondition, len(p.conditions))
	}
	for i, message := range p.conditions {
		var c conditionParts
		if err := protowatch.Fields(message, c.find); err != nil {
			return nil, err
		}
		condition := &n.Status.Conditions[i]
		condition.Type, condition.Status, condition.Reason = corev1.NodeConditionType(d.intern(c.kind)), corev1.ConditionStatus(d.intern(c.status)), d.intern(c.reason)
		if err := condition.LastTransitionTime.Unmarshal(c.transition); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// entries creates a map from its encoded entries.
func (d *decoder) entries(messages [][]byte) (map[string]string, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	made := make(map[string]string, len(messages))
	for _, message := range messages {
		var key, value []byte
		if err := protowatch.Fields(message, func(number protowire.Number, part []byte) error {
			switch number {
			case entryKey:
				key = part
			case entryValue:
				value = part
			}
			return nil
		}); err != nil {
			return nil, err
		}
		made[d.intern(key)] = d.intern(value)
	}
	return made, nil
}

const (
	// maxInterned is the maximum number of interned strings, and maxInternedLength the maximum
	// length of one.
	maxInterned       = 4096
	maxInternedLength = 256
)

// intern returns a string that all nodes share. Most of their labels and conditions are equal.
func (d *decoder) intern(text []byte) string {
	if len(text) > maxInternedLength {
		return string(text)
	}
	if known, ok := d.interned[string(text)]; ok {
		return known
	}
	if len(d.interned) >= maxInterned {
		clear(d.interned)
	}
	copied := string(text)
	d.interned[copied] = copied
	return copied
}
