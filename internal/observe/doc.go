// Package observe converts objects of the API server into the facts and rules of package
// triage. Each fact comes from the object that it was read from. The package has no client:
// it neither writes objects nor decides what a fact means.
package observe
