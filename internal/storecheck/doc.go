// Package storecheck detects that the store of the API server was restored from a backup.
//
// After a restore the resource version goes backwards. The package detects this within seconds
// of the first response. The caches of the process are then wrong: a watch from the old version
// sends no changes until the store reaches that version again.
//
// The package does not repair anything. Its caller ends the process, and the next process
// starts with new lists.
package storecheck
