// Package plugin makes examinations of programs that others have written: the rules of a
// custom-plugin-monitor become exams, and their file a monitor.
//
// It promises the meaning that such programs rely on: exit code 0 is well, 1 is sick, and
// everything else, or an end that is not the program's own, is Unknown, with a reason for
// each way in which a program can fail to answer. What a sick program has written is the
// message, as long as the file allows.
//
// It runs nothing itself and keeps no time: that is done by the children and the rounds
// that it is given. It refuses to read more into an output than its words.
package plugin
