package periodic

import "context"

// Verdict is the outcome of a check.
type Verdict uint8

// The verdicts. Unknown means that the check could not look.
const (
	Unknown Verdict = iota
	Healthy
	Unhealthy
)

// Result is the answer of a check.
type Result struct {
	Verdict Verdict
	// Reason is a CamelCase word, for example why the check could not look. If it is empty, the
	// reason of the rule applies.
	Reason string
	// Message explains the verdict to a person.
	Message string
	// Unclear says that a plugin ran and did not say whether the node is healthy. That is a problem
	// found by a temporary rule, because users of node-problem-detector count such problems.
	Unclear bool
}

// Check examines the node. It returns when ctx ends, or shortly after.
type Check func(ctx context.Context) Result
