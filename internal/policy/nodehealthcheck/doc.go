// Package nodehealthcheck follows NodeHealthChecks: the controller remediates a node that is
// unhealthy for long enough, unless too many nodes are unhealthy. The package compiles each health check to a
// rule, writes its status, and publishes its Events. It leaves the health checks to medik8s'
// own controller while that controller runs. It creates no remediation objects itself:
// internal/treatment/remediation does, and asks this package what a rule requests. Most tests
// of health checks are there, because they cover both.
package nodehealthcheck
