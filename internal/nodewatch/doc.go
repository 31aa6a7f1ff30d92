// Package nodewatch lists and watches nodes, and decodes only what Autohealer
// uses of them. It promises that what comes out is [Trim] of what the API server
// sent, and that a version of a node that says the same as the one before costs
// next to nothing: of 10,000 nodes 33 a second send nothing but a heartbeat, in
// 15 KB each. It refuses to hide anything: what it cannot read ends the watch
// with an error that says so.
package nodewatch
