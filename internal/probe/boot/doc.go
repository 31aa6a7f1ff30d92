// Package boot says which boot of the machine this is, and when it began: what a boot
// cures is told by its identity, and lines from before it never count.
//
// It promises that two readers of the same boot are told the same, however much later
// one of them asks, unless somebody has set the clock. It refuses to guess: where the
// kernel does not say, there is an error and no boot.
package boot
