// Package karpenter has the Karpenter API types, reduced to the fields that Autohealer
// uses, the names of labels and annotations, and the rules by which Karpenter counts a node
// as initialized. Decoding a list never fails because of a single field. A malformed field
// is dropped; a malformed repair block or budget is marked as unreadable. Never write these
// types back: an update would delete all fields that they lack. Send a patch instead.
//
// The types follow Karpenter 1.15, API group karpenter.sh/v1.
package karpenter
