// Package provider states which conditions make a node sick, for each of those who
// can replace one: Karpenter, and whoever has plain nodes. It promises that what users
// state in a file of their own is read as a whole or refused with the line that is
// wrong. It refuses to say how long a pool tolerates a sickness: a provider recommends,
// and the pool's policy decides.
package provider
