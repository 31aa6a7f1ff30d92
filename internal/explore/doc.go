// Package explore runs the real triage core and the real engine against a model of the
// Kubernetes API, in every order of events up to a bound. It checks the promises of Autohealer
// after every write, and what has become of the nodes when nothing happens any more. It is for
// tests only.
//
// # A run
//
// A run is a cluster of a few nodes in a synctest bubble. Up to three replicas of the
// controller run in it, each with the engine, the core, the treatments and the policies of
// health checks and Guardrails. Reads are answered at once. Writes wait in the model, and watch
// events wait in their streams, until the explorer lets them continue. Then the explorer waits until all
// goroutines wait again. So a run has no races, and the same actions give the same run. The
// clock is that of the bubble.
//
// # The search
//
// The prompt schedule delivers everything in the order in which it was sent. At every step of
// it the explorer also tries everything else: another order, a lost watch, a lost or a delayed
// write, a lost answer, a rejected write, a crash, a failover while the old leader still runs,
// time that passes, and changes by other components. Each of these is a deviation. The search
// goes through all paths with one deviation, then with two, and so on. A run cannot be copied,
// so the search repeats the start of a path for every deviation. It ends a run in a state that it
// has seen before; a hash of the whole memory of all replicas identifies a state.
//
// The package does not prove anything about longer paths or larger clusters, and it does not
// explore policies that change (except the mode of the Guardrails), NodeClaims and the policy of
// condition sets.
package explore
