// Package catalog describes the known node conditions: their types, which component reports them,
// which status is healthy, what the problem means, and the default taint. The documentation and the
// default ConditionSets are generated from it. Admission and the agent read it.
//
// Every default has its reason next to it. The package imports only the standard library, so that
// the small agent can use it. It knows nothing about a cluster and takes no action. A condition
// that is not in the catalog is unknown here, which does not make it wrong.
package catalog
