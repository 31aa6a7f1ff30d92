package engine

// Progress is how far the next write for a node is.
type Progress int

// A write goes through these, back to Idle. A write that takes no slot skips
// AwaitingLedger.
const (
	Idle           Progress = iota
	Queued                  // has something to do
	AwaitingLedger          // waits until the ledger stores its slot
	Running                 // sent, not answered
)
