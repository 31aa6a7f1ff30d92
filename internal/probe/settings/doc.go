// Package settings keeps the configuration files that the agent is given: what stands
// in them now, and of each the last version that was good.
//
// It promises that an edit is noticed soon after it is made, also when the file is one
// of a ConfigMap that is mounted, or comes later; that a bad version never takes the
// place of a good one, also if it was good in a life before; and that each change is told once, in words. A file that is
// gone is none: what was in force of it is so no longer. The package does not say what
// makes a version good, and starts nothing of what a file asks for.
package settings
