// Package taint writes the taints that plans ask for to nodes, together with the record of
// their owner. It does not decide which nodes get a taint. [Writer] is the engine's writer
// of node objects; it serves every policy whose rules ask for taints.
//
//	plan differs from node ──► queue ──► takes a slot? ── no ──► write ──► node has a new version
//	                                          │ yes                ▲
//	                                          ▼                    │
//	                                       ledger ─── stored ──────┘
//
// A NoExecute taint takes a slot under the bound of its rule. A write names the version of
// the node, so it succeeds only if the node is unchanged. A write without an answer may
// still arrive while the node has that version, so its slots stay taken until the node has
// another version. If the write is no longer wanted, a fence gives the node a new version.
package taint
