// Package problem is the client library for daemons on a node that report problems to Autohealer's
// agent. It contains the types of a report and a client that sends them.
//
// A [Status] contains the name of the source, the [Event]s that happened and the state of its
// [Condition]s. It is sent as JSON with POST to [Path] over a unix socket of the agent. Any program
// can do so. This package is for programs in Go:
//
//	client, err := problem.New(problem.Config{Source: "disk-watch"})
//	...
//	var reporting sync.WaitGroup
//	reporting.Go(func() { client.Run(ctx) })
//	defer reporting.Wait() // when ctx has ended, Run sends what is left
//	client.SetCondition(problem.Condition{Type: "DiskBadBlock", Reason: "NoBadBlocks"})
//
// The agent then knows that the daemon is alive and the state of its condition. A call reports each
// change. Run repeats the latest conditions as a heartbeat, combines reports into a single status,
// and continues after an outage of the agent.
//
// No method except Run blocks. The agent always gets the latest state of a condition. Every event
// is delivered or counted. The queue of waiting events is bounded. The client does not decide what
// a problem is.
//
// The agent must be configured to accept the daemon: docs/reference/problem-sources.md describes the
// configuration, and docs/reference/problem-reports.md the agent's answers. This package imports only
// the standard library.
package problem
