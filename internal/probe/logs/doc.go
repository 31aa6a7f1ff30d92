// Package logs is what logs are made of, whoever writes them: chunks of whole lines,
// readers that follow a log from a position on, and translators that find the stamp
// and the message in a line.
//
// A chunk is handed on as it was read. Most lines are of no interest, and a reader
// that took each of them apart would cost more than all that is done with the rest; so
// only those who find something in a line translate it. The package itself reads
// nothing.
package logs
