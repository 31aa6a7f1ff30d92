// Package checkresult defines checks of the node and their results. A check is either a program
// that the agent runs or a function of the agent.
//
// "Healthy" and "could not look" are different results. The zero Result is Unknown: a check that
// gave no answer could not look.
//
// The package runs no checks. It does not decide what a result means for a condition.
package checkresult
