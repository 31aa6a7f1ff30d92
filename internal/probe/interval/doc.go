// Package interval is the monitor that examines the node by the clock: it asks each of its
// exams in its interval, and says what the answers mean for conditions and events.
//
// It promises that every rule is examined at once and then in its interval, at most so
// many at a time and none twice at the same time, and that one that hangs or panics
// holds up nobody for longer than its timeout: its answer is Unknown.
//
// It promises one word for each condition, however many rules it has: sick if a rule
// says so, in the words of the one that has said so longest, so that two never take turns;
// else not known if one could not look; else well.
//
// It refuses to guess. Nothing is said of a condition before it is known from the answers
// of its rules. Only what was sick in the life before is sick until all have answered, so
// that a restart does not make a sick node healthy. Where first answers take too long the
// condition is Unknown. It does not know what an exam looks at.
//
// # What an answer means
//
// A permanent rule that finds the node sick makes its condition True with the rule's
// reason and the message of the answer; the message of one that stays sick is told anew
// only if that is asked for (UpdateOnMessage), and not too often (MessagePause). An answer
// that is Unknown ends the sickness, as it does with the old agent: then nobody knows. When
// all rules are well the condition has the words that it was declared with.
//
// A temporary rule tells an event each time it finds the node sick. One that cannot look
// tells an event when that begins or, where it is asked for (UnknownIsProblem), its own
// each time, as the old agent does.
package interval
