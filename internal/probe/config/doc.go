// Package config reads the files that tell the agent what to look at: those of
// node-problem-detector as they are, and what Autohealer adds to them.
//
// It promises that a file which does its work under the old agent does the same here,
// and that a file which cannot says all that is wrong with it at once: where, what,
// and what to write instead. The old agent is silent about many of these, such as a
// rule for a condition that nobody declares. What Autohealer adds is ignored by the
// old agent, so that one file serves both. What nobody knows is ignored here too, as
// it is there; but if it looks like something that is known, there is a warning.
//
// The package looks at files only: it starts nothing, and whether a log or a program
// is there does not make a file good or bad.
package config
