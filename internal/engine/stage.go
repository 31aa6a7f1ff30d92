package engine

// Stage is the progress of the next write for a node.
type Stage int

// A write goes through these stages, back to Idle. A write that takes no slot skips
// AwaitingLedger.
const (
	Idle           Stage = iota
	Queued               // has something to do
	AwaitingLedger       // waits until the ledger stores its slot
	Running              // sent, not answered
)
