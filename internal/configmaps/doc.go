// Package configmaps reads ConditionSets that are written in a ConfigMap, and stores the
// last valid version of them. A ConfigMap is read completely, or rejected with the numbers
// of its wrong lines. A stored version survives a restart and a change of leader. The
// package checks only the syntax of a set; package validate checks its impact.
//
// # Which keys are read
//
// A ConfigMap with the [Label] contains sets in every key of its data whose YAML says type:
// ConditionSets. Other keys and binaryData are ignored. To ignore a file by mistake would
// remove taints from unhealthy nodes. In doubt the file therefore counts as a broken file of
// sets: if it is not YAML but has a typical line, or if its type is nearly right. A
// ConfigMap with the label and without any file of sets is an error, too.
//
// # How versions are stored
//
// All keys of a ConfigMap together are one version. The [RevisionStore] stores the last
// valid version as a ControllerRevision, owned by the ConfigMap. A revision is immutable, so
// the store creates the next one before it deletes the previous ones. There is always at
// least one, and the one with the highest number counts. Components that only read the sets
// in force use a [RevisionWatcher].
package configmaps
