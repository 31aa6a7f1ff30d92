// Package checkresult is what an examination of the node answers, whoever holds it: a program
// that is run, or a function of the agent.
//
// It promises that "healthy" and "could not look" are different answers, and that an
// answer which was never given is the latter. It examines nothing, and refuses to say
// what an answer means for a condition.
package checkresult
