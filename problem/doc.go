// Package problem is how a daemon on a node tells Autohealer's agent what it has found:
// the types of a report, and a client that sends them.
//
// A [Status] says who speaks, which [Event]s have happened, and how the [Condition]s that
// the speaker keeps stand. It travels as JSON, POSTed to [Path] over a unix socket of the
// agent. Any program that can do so may report; this package is for those in Go:
//
//	client, err := problem.New(problem.Config{Source: "disk-watch"})
//	...
//	var reporting sync.WaitGroup
//	reporting.Go(func() { client.Run(ctx) })
//	defer reporting.Wait() // when ctx has ended, Run sends what is left
//	client.SetCondition(problem.Condition{Type: "DiskBadBlock", Reason: "NoBadBlocks"})
//
// From then on the agent knows that the daemon lives and how its condition stands, and
// a call tells it whenever that changes. Run repeats the newest conditions as a
// heartbeat, gathers what comes at once into one status, and goes on where it was when
// the agent was away.
//
// The client promises that no call of a daemon ever waits for the agent, that the newest
// word on a condition is the one that gets there, and that every event is delivered or
// counted. It refuses to decide what is a problem, and to grow: what waits is bounded.
//
// The agent must know the daemon: docs/problem-reports.md says how its sources are
// configured, and what it answers. This package needs the standard library only.
package problem
