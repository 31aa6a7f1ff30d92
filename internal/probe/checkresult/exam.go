package checkresult

import "context"

// Verdict is what an examination has found.
type Verdict uint8

// The verdicts. Unknown means that the examination could not look.
const (
	Unknown Verdict = iota
	Well
	Sick
)

// Result is what an examination says.
type Result struct {
	Verdict Verdict
	// Reason is one CamelCase word, such as why an examination could not look. Empty
	// means the reason of the rule that asks.
	Reason string
	// Message is for people.
	Message string
}

// Check examines the node. It returns when ctx ends, or soon after.
type Check func(ctx context.Context) Result
