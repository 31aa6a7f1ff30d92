// Package configmaps reads ConditionSets that are written in a ConfigMap, and
// keeps the last version of them that was good. It promises that whatever stands
// in a ConfigMap is either read as a whole or answered with the lines that are
// wrong, and that a version which was kept is found again by whoever comes next.
// It refuses to judge what the sets would do: it knows how a set is written, not
// whether it is wise.
//
// # What is read
//
// A ConfigMap that carries the [Label] holds sets in every key of its data whose
// YAML says type: ConditionSets. What says something else is not looked at, and
// neither is binaryData. Leaving out silently what was meant to be read would take
// taints off sick nodes, so in doubt a file counts as one of ours that is broken:
// one that is no YAML but has a line of ours, one whose type is nearly the right
// one, and a ConfigMap with the label that has nothing to read at all.
//
// # What is kept
//
// All keys of a ConfigMap are one version. The [Shelf] keeps the last good one as
// a ControllerRevision beside the ConfigMap, which owns it. A revision cannot be
// changed, so the next one is made before those before it are deleted: there is
// one at every moment, and of two the higher counts. Whoever only wants to know what
// is in force has a [Lookout], which watches the shelf.
package configmaps
