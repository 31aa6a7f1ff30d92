// Package observe turns what the API server stores into what triage wants to
// know. It promises that a fact stands in the object that it was read from, and
// refuses to write or to decide: it has no client that could, and what a fact
// means is not its business.
package observe
