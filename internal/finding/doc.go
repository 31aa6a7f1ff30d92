// Package finding is the language in which those who look after a node tell those
// who report it what they have found: conditions that stand, and events that have
// happened. Detectors, third-party daemons and the reporter share no other.
//
// It promises that the same occurrence has the same identity however often it is
// found, so that whoever passes it on may do so twice. It decides nothing and knows
// nobody: where a symptom comes from and where it goes is not its business.
package finding
