// Package statefile keeps what the agent must not forget when it is started again: how far
// each log was read, what was found to stand, the labels of its node, its files as they
// were last good, and a note of what was agreed upon with others.
//
// It promises that the state file is whole at every moment, whatever dies when: a state
// replaces another or does not. What is urgent is written at once, the rest soon, and
// nobody who hands something over ever waits for a disk. A disk that does not take it
// is told of and tried again; the agent goes on without.
//
// A monitor that nobody asks for is remembered for a day more: what it has found stands
// if it comes back.
//
// It refuses to understand what it keeps: what a position or a state means, and whether
// it still holds after a reboot, is for those who wrote it to say.
package statefile
