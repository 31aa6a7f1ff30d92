// Package finding defines the data that monitors and third-party daemons pass to the reporter:
// conditions of the node, and events that happened on it.
//
// The same occurrence always has the same ID, so a caller may pass it on twice. The package makes
// no decisions. It does not know where findings come from or where they go.
package finding
