// Package admission answers the API server when it asks whether a policy may be
// stored. It promises that every replica answers, whether it leads or not, with
// the verdict of vet over the nodes as they are now; that what is wrong with a
// policy already never hinders a change of its metadata; and that a policy can
// always be deleted, but that where remediations would be cut off somebody has to
// say first that it is meant. It refuses to decide anything itself, to change what
// it is asked about, and to let a policy in while it does not know the nodes; but a
// NodePool, which is Karpenter's, waits for nobody and is judged by what is known.
package admission
