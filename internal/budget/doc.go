// Package budget counts the disruption budgets of a NodePool as Karpenter 1.15
// counts them. It promises the number that Karpenter itself would come to at the
// same instant, with the words that decide it and the instant from which the clock
// may change it, so that nobody has to ask again and again. It refuses to be kinder
// than Karpenter: one budget that cannot be read closes the whole pool.
package budget
