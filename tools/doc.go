// Package tools pins the programs that work on this repository, at the versions
// in its go.mod, and builds what takes long with visible progress (./build). It
// is a module of its own so that none of it reaches the product's go.mod.
package tools
