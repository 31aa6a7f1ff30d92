// Package validate checks a policy before the controller applies it: whether it compiles,
// whether it probably means what its author meant, and what it would do to the current
// nodes.
//
// A verdict depends only on its [Case], [HealthCase], [RepairCase] or [NodePoolCase].
// The webhook validates first. The controller validates again, because the webhook can be
// disabled; both return the same verdict for the same policy. For a health check the
// controller only asks whether it compiles. For a repair block it also asks whether the
// block selects unhealthy conditions only. The engine enforces the bounds of both.
//
// Every rejection names the field, the consequence, and how to correct it or to accept
// it. The package reads neither the cluster nor the clock: the caller supplies the
// reported conditions, the impact on nodes, and the objects that the policy refers to.
package validate
