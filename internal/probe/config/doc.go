// Package config parses the agent's configuration files, and accepts the files of
// node-problem-detector unchanged. It adds fields of its own.
//
// A file that works with node-problem-detector works the same here. Parse reports all errors of a
// file at once: where each is, what is wrong, and what to write instead. Many of them, for example
// a rule for an undeclared condition, are silent in node-problem-detector.
//
// node-problem-detector ignores the added fields, so one file serves both agents. This package
// ignores unknown fields too, but warns if a name looks like a misspelled known field.
//
// The package only looks at files. It starts no monitors, and a log or program that is missing does
// not make a file invalid.
package config
