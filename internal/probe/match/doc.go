// Package match searches a log for many patterns at once.
//
// A [Set] returns the lines in which a pattern may match. A caller that tries only these
// patterns on these lines finds exactly what trying every pattern on every line would
// find, at a small part of the cost. Most lines contain none of the literals that the
// patterns require, and the scan skips most of their bytes. The package knows only text.
// It does not know timestamps, rules, or what a match means.
package match
