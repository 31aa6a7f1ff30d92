// Package validate judges a policy before it is followed: whether it can be, whether
// it means what its author meant, and what it would do to the nodes of now.
//
// It promises that a verdict is a function of its [Case], [HealthCase],
// [RepairCase] or [NodePoolCase]: the webhook, which is asked first, and the
// controller, which asks again because a webhook can be off, say the same of the
// same policy. Of a health check the controller only asks whether it compiles, and of
// a repair block whether it is for sick nodes too: their bounds hold by themselves. Every
// refusal says where the mistake is, what would come of it, and how to do it right
// or anyway. It refuses to look at a cluster and to read a clock: what nodes report,
// how many would be hit, and what is there under a name is asked of the caller.
package validate
