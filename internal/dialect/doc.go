// Package dialect compiles what people write into the rules that triage
// follows: condition sets, node health checks, repair policies and the ready
// timeout are four ways to say one sentence.
//
// It promises that what compiles is a valid rule with every default filled in,
// and that what does not is told by a *[triage.FieldError] that names the field
// as its author spells it, and the value. It refuses to know where the words
// came from: the fields are text, and reading objects, files or the environment
// is the caller's part.
package dialect
