// Package match seeks many patterns in a log at once.
//
// It promises that whoever looks only where a [Set] points, and asks the patterns
// there, finds exactly what asking every pattern of every line would find, at a small
// part of the cost: most lines have none of the words that a match cannot do without,
// and are passed over without being looked at byte by byte. The package knows of text
// only: stamps, rules and what a match means are somebody else's.
package match
