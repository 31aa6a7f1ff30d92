// Package conditionset follows ConditionSets, which turn combinations of node conditions
// into taints. A set is an API object or a part of a ConfigMap. The package compiles each
// set to a rule of internal/triage, validates it, writes its status, and reports Events and
// metrics. It writes nothing to nodes: the engine carries out the plans.
//
// # Validation
//
// The admission webhook may be missing or may have been off. The policy therefore validates
// every set again with the same rules (internal/validate) once nodes and sets are loaded.
// The policy does not follow a rejected set, and the set's status says why. A set version
// that its status calls accepted is compared with other sets only, not with nodes: a new
// leader keeps the existing policies in the middle of a storm. If nodes report something
// else, the policy validates a set again that it rejected because of them.
//
// # ConfigMaps
//
// A set from a ConfigMap takes effect once the policy has stored its revision, and a new
// leader starts with the stored revisions. If a revision cannot be read, its rules are
// unknown, and taints of unknown rules would be removed. The policy therefore keeps all
// taints of ConfigMap sets in place until it can read the revision. The ownership record on
// the node names the rules.
package conditionset
