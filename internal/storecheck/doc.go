// Package storecheck notices that the store of the API server was restored from a backup.
//
// A resource version that goes backwards says so. It promises to notice that within
// seconds of the first answer after the restore. What the process knows is of no use
// then: a watch from the old version waits until the store has reached that version
// again, and tells nothing of what changes until then. The package does not repair
// anything; its caller ends the process, and the next one begins with lists.
package storecheck
