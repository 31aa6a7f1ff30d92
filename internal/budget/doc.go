// Package budget evaluates the disruption budgets of a NodePool like Karpenter 1.15. It
// returns the number that Karpenter would compute at the same time, the message that
// explains it, and the time from which it may change. So callers do not have to poll. Like
// Karpenter it treats a pool as closed if any of its budgets cannot be read. It does not
// count which nodes are being disrupted.
package budget
