// Package periodic contains the monitor that runs checks at intervals. It turns their results into
// conditions and Events. A check is a function of the agent, or a plugin: a program that a
// custom-plugin-monitor file names.
//
// The monitor runs every rule once at the start and then at its interval. It runs at most
// Concurrency checks at a time, and never the same rule twice at once. A check that hangs or panics
// has the result Unknown and delays other checks for no longer than its timeout.
//
// A condition can have several rules. If a rule finds the node unhealthy, the condition is True,
// with the message of the rule that has been unhealthy longest. Two unhealthy rules therefore never
// alternate. Otherwise the condition is Unknown if a rule could not look, and False if all rules
// are healthy.
//
// The monitor reports a condition only after its rules have answered. A condition that was True
// before a restart of the agent stays True until all its rules have answered, so that a restart
// does not make an unhealthy node healthy. If the first answers take too long, the condition is
// Unknown.
//
// The package does not know what a check looks at, and does not interpret the output of a plugin.
// It starts no processes itself: package subprocess does.
//
// # What a result means
//
// "Healthy" and "could not look" are different results. The zero Result is Unknown: a check that
// gave no answer could not look.
//
// A permanent rule that finds the node unhealthy makes its condition True with the rule's reason
// and the message of the result. While the rule stays unhealthy, a new message is reported only if
// UpdateOnMessage is set, and at most once per MessagePause. A result that is Unknown ends the
// problem and makes the condition Unknown, as in node-problem-detector. When all rules are healthy,
// the condition has its declared reason and message.
//
// A temporary rule writes an Event each time it finds the node unhealthy. When it starts to be
// unable to look, it writes an Event that says why. A plugin that ran without a clear answer is a
// problem found each time, as in node-problem-detector; a plugin that could not run, for example
// because its interpreter is missing, is not.
//
// # What a plugin's exit code means
//
// The exit codes mean the same as in node-problem-detector. Exit code 0 is healthy and 1 is
// unhealthy. Any other code, and any end that the program did not choose, is Unknown, with a reason
// for each kind of failure. The message is the output of the program, cut to the length that the
// file allows.
package periodic
