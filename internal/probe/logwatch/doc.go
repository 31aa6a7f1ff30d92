// Package logwatch is the monitor of one log: it joins the reader of the log, the rules
// that give its lines a meaning, and the memory of how far both have come.
//
// It promises that what was found is handed over before it is remembered that it was
// read, and that both are remembered together: after a restart, or a kill, no line is
// forgotten, and what is found twice has the same identity. Conditions are told when the
// log was read to its end, or after some seconds. It decides nothing about lines, and does
// not say when it counts as dead.
package logwatch
