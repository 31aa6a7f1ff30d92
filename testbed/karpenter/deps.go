// Package karpenter pins the Karpenter that tests and the demo run, with the
// provider whose machines are nodes that kwok plays.
//
// It is a module of its own, beside the control plane's, so that neither decides
// what the other is built from. It holds no code of Karpenter: tools/build puts the
// published module in the folder that the replace line of this go.mod names, for the
// reason that stands there.
package karpenter
