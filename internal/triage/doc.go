// Package triage decides what is to be done about every node, and why.
//
// It promises that a decision is a function of what its caller told it: facts
// about nodes, rules, and the time. No bound of a rule is exceeded by any
// sequence of calls, no node is treated twice at once, and there is a reason
// for everything, also for doing nothing. It refuses to look at the world: it
// has no clock, no network, no logger and no import outside the standard
// library. The caller drives it, as the caller of a raft library does.
//
// # Driving it
//
// A [Core] starts empty and undecided. Tell it the rules ([Core.SetRule]), the
// nodes ([Core.Observe]), what an earlier process had decided ([Core.Resume]) and
// the storms that it saw ([Core.ResumeStorm]); then call [Core.Loaded] once. Until
// then nothing new is begun, because a percentage of half a cluster is not the bound
// that anybody wrote; only a treatment that is under way may take its next step.
//
// From then on, after every call that takes the time, ask [Core.NextWoken]
// until it is empty and bring the cluster in line with the [Plan] of each node
// it names; and call [Core.Advance] when [Core.Deadline] has come. A plan may
// be asked for at any time and changes nothing.
//
// Where somebody else counts, too, as a disruption budget does, the caller tells what
// that leaves ([Core.Allow]), before Loaded and whenever it has counted again.
//
// Whoever wonders what a rule would do asks for its [Impact]. That needs neither the
// rule to be followed nor the time, and may be asked between any two calls: nothing is
// decided or changed by it, and several may ask at once, as long as nobody calls
// anything else meanwhile. A core without rules answers as well as any other.
//
// The caller's duties:
//
//   - It calls from one goroutine at a time.
//   - It reports what it finds on a node under the rule that put it there
//     ([Node.Taints], [Node.Treatments]). A decision holds its place in the
//     rule's cap from the moment it is taken; the place is freed when the
//     facts have shown the response and then no longer show it.
//   - When a decision was not carried out and cannot be on its way any more, or
//     when a plan asks for a release and nothing that takes a place is there or
//     on its way, it calls [Core.Abandon]. Nothing else frees a place that was
//     never seen taken, neither a change of the rule nor its end. It calls it, too,
//     when a plan calls off a step and that step is neither there nor on its way.
//   - It keeps what [Plan.Remember] lists with the node and gives it back as
//     [Node.Memories] after a restart; and so it does with the note of a treatment
//     ([PlannedTreatment.HealthySince], [Treatment.HealthySince]), with the
//     storms that [Core.Population] tells of, with the nodes that have gone and
//     keep their place ([Core.Departures]), and, where a rule counts from creation,
//     with that a node has been initialised ([Plan.Initialized], [Node.Initialized]).
//
// # Meanings
//
// Who: a rule selects nodes by label. When: a [Signal] is one condition in one
// status; the signals of a rule that name one condition form one group. A group
// holds when one of its signals matches, is unclear when the condition is
// Unknown and no signal of the group names that Unknown, and does not hold
// otherwise. A condition that is not there has the status [Missing]. Unknown
// with reason [AgentSilent] says that nobody looked: it matches only a signal
// that asks for it, and is unclear otherwise.
//
// A rule that wants any of its groups holds when one holds, is unclear when
// none holds but one is unclear; a rule that wants all does not hold when one
// does not, is unclear when one is unclear, and holds otherwise. A node becomes
// sick under a rule when the rule holds and stops being sick when it does not;
// while the rule is unclear it stays what it was, and nothing starts or ends.
// A rule that is new, changed or met again after a restart has no such past. If
// it is unclear, the node counts as sick when it carries the rule's response, or
// when clocks that were kept or remembered say that it was.
//
// Clocks: each group has a clock of its own. It starts when the group begins to
// hold, at the caller's time if the core had judged the node by this rule
// before, otherwise at the time from which the condition has had its status
// (the caller's time if the core saw it change, else the condition's own
// transition time, never later than now). It runs on through Unknown and
// through a change from one sick status to another, and stops when the group
// does not hold. A group whose signals count from creation takes the node's
// creation time, and ends for good once the node has been initialised: somebody says
// so, or it was seen ready for work.
//
// Ready for work is a node that is Ready and not starting. While it is starting, its
// startup taints are there, which the caller tells as the condition [StartupTaints]
// beside: a rule may wait for their end as for any other.
//
// Memories: a core that starts anew has nothing but the condition's own transition
// time to find a start by. A plan asks to remember the start of a clock for which
// that time does not stand: it did not move forward when the condition came to be
// what it is (it is that of an earlier state, or there is none), it was far from the
// caller's time then (somebody's clock is wrong), or it has moved since. Whole
// seconds, and the moment that news takes, are forgiven, so an ordinary sickness is
// not remembered. This is for groups in which a signal has a duration,
// since only there the start decides anything, and for every group while it is
// unclear, since then nothing else tells that the node was sick; it is not for a
// rule on dry run, nor for a condition that is not there. Where nothing is
// remembered, a restart counts from the transition time, or from itself if that is
// missing or still to come. A memory is believed while the condition has the
// transition time that it was written against.
//
// Eligible: a group's time is its clock plus the duration of the matching
// signal. Of several, one that names the reason decides over one that takes any,
// and then the shortest. A rule that wants any is eligible at the
// earliest time of its holding groups, a rule that wants all at the latest.
//
// Bounds: a gate closes when more nodes are sick than it allows, where a selected
// node that is not sick counts with them until its treatment is gone, and one that was
// terminated until it is replaced; a cap is full when as many nodes are in treatment as
// it allows. A closed gate or a full cap stops new treatments, not running ones and not
// their escalation. A percentage is of the nodes selected now; that of a gate, or what
// is left of them when so many are to be healthy, counts those that are gone and not
// replaced yet as selected, so that going away changes nothing about it. That of a
// cap does not count nodes that are younger than the first of those that are to be
// replaced, unless they stand in for one that has gone: a replacement makes no room. A
// cap of 100% is of all of them, those that are gone and not replaced included.
//
// Foreign taints: a NoExecute taint that is on a node and that the caller cannot prove to
// be this system's ([Node.Foreign]) counts under the cap of every rule that selects the
// node and places NoExecute with its key. The rule wants no taint of its own there, and
// waits for nothing; the place is free when the facts no longer show the taint. It may
// put more nodes under a cap than the cap allows: then nothing is begun. A taint that was
// placed for another rule counts under that rule alone.
//
// Pools: rules of one pool share their caps. What any of them has in treatment, those
// who are gone and not replaced among them, counts under the cap of each, which is
// still a share of the nodes that the rule itself selects. A place that one gives back
// goes to whoever is first in the order of service, whichever rule asks. A rule that
// is moved to another pool takes along what it has in treatment; one that is gone
// stays in its pool for as long as it has left something behind and the core knows of
// it. Everything else a rule counts is its own: sick nodes, gates and storms are not
// shared.
//
// Allowances: somebody's word on how many more treatments a rule may begin. Each first
// step that is decided takes one from every allowance in the pool of its rule, or from
// the rule's own if it has no pool; later steps, and what was decided or found before,
// take none. At zero nothing is begun until the next word, and what was decided goes
// on. What is abandoned gives nothing back: only who counts knows what that means. The
// word may come before its rule, survives every edit of it, and ends with it.
//
// Storms: a gate with a cooldown that is found closed stays closed until no more
// nodes than it allows have been counted for that long without a break. That is
// judged once for every call, when all that it brought has been counted and before
// anybody is served, and not before Loaded. A storm that an earlier process saw goes
// on from when it was over then; if it was not, its cooldown begins at Loaded, or
// later. A storm is judged by what the rule says now, ends with the rule or its
// cooldown, and ends by itself, also when no node is sick.
//
// Responses: a taint, or a ladder of treatments. Eligible nodes are served in
// the order of the time since which they wait, then the rule's kind, then its
// name, then the node's name. A node has one treatment at a time across all
// rules, and one control-plane node at a time is in treatment across the
// cluster. A decision is passed over while its rule is on hold, its node is
// vetoed or treated by another rule, another control-plane node is in
// treatment, the gate is closed, the cap is full, or no more is allowed; the first of
// these in that order is the reason it tells. Taints wait for nothing but the cap of
// NoExecute: without room, or on a control-plane node that the rule does not
// include, NoSchedule takes its place. Of the taint rules that stand on one
// node, only those of the highest declared effect place their taint.
//
// A rule that asks for less than NoExecute takes no places. If it has asked for
// NoExecute before, the places that it took then stay taken: that of a NoExecute
// taint that the facts show until they no longer do, that of one which they have
// never shown until it is abandoned. For the second the plan asks for a release,
// beside the weaker taint that the rule wants now. If the rule asks for NoExecute
// again before that, its places are what they were.
//
// A NoExecute taint that was decided has begun when the facts show it. Until then
// it begins only while it could be begun now: not while the rule is unclear, not
// before the rule is eligible, and not on hold. Meanwhile the rule wants no more
// than what stands on the node already, and the plan asks for a release, so that
// the caller makes sure that nothing is on its way, and abandons it. If it may begin
// before that, it goes on. What stands stays, with one exception: on a node of the
// control plane that the rule does not include, or no longer does, NoExecute is
// exchanged for NoSchedule, whatever else is known, and one that was decided is
// called off.
//
// A treatment that was decided has begun, too, when the facts show it, and its next
// step when they show that. Until then it begins only while it could be begun now:
// the first step not while the rule is unclear, not before it is eligible, not on
// hold, not on a node that is vetoed and not while the gate is closed; a later step
// not while the rule is unclear or the node is not sick, not on hold and not on a
// node that is vetoed. Meanwhile the plan wants the step that the facts show, if they
// show one. For a first step it asks for a release. A later one it only calls off
// ([Plan.CallOff]), since what was begun before it stays: when that is abandoned, the
// step that the facts show is the current one again, and the next may be decided anew
// once nothing speaks against it. If either may begin before it is abandoned, it goes
// on. A step that the facts have shown and no longer show is over, and the one before
// it, if that is still there, is the current one again.
//
// What is abandoned for a retry waits for that, and its turn counts from then. What
// is abandoned without one keeps the turn that it had, and may be decided again at
// once, if nothing speaks against it. What a plan releases has something that speaks
// against it: a caller that abandons all of that comes to rest.
//
// Recovery: a treatment is taken back when the node is no longer sick. Under a rule
// that asks for a recovery it stays, once the facts have shown it, until the node has
// been not sick for the delay without a break, or until somebody confirms that it is
// healthy; a confirmation ends either wait, and says nothing of a sick node. A
// condition of the rule that has its status still and a later transition time tells
// of a flap that nobody saw, and begins the wait anew. While
// the rule is unclear nothing ends, confirmed or not, and the wait begins anew when
// it is clear that the node is not sick. The treatment keeps its place meanwhile and
// takes no next step. A rule that is changed, or met again after a restart, goes on
// from what it knew or, failing that, from what was noted with the treatment, but
// from no earlier than the time from which each condition that it reads has had its
// status, and no earlier than it knew the node to be sick; where nothing is known or
// noted the wait begins. Nobody waits for a node that the rule no longer selects,
// under a rule that is gone, or on dry run.
//
// Dry run: a rule on dry run is judged and counted as any other and decides
// nothing. It takes no place, wants no taint and no treatment, supersedes nobody
// and keeps nobody waiting. Of a node on which it holds and is eligible it tells
// what it would begin with, bounds and vetoes aside. What is there of it, or was
// decided and may be on its way, is to be taken back, also while it is unclear
// whether the node is sick. Until that is gone it keeps its place, as everything
// does that is to be taken back, so that no bound is exceeded when the dry run
// ends. Of a rule that is also on hold nothing stays either.
//
// Impact: what a rule would find were it followed now is what it would count as sick
// if it was never heard of before. So a rule that waits for a while counts who has
// just begun to show the condition, and one that is unclear about a node does not
// count it, also if the rule is followed already and remembers better. Beside those it
// counts the nodes that may come to match once they report what they do not report now.
//
// In treatment means from the decision until the response is gone. After a
// termination the place stays taken until a node that was created after the
// decision and is selected by the rule has become ready for work, or until
// [ReplacementWait] after the node has gone. One node replaces one, whichever of the
// rules that select it have lost one: that which was decided first. A node that
// was ready for work before [Core.Loaded] has been counted by an earlier process. A node that
// goes while the facts show a treatment that deletes it ([Treatment.Deletes]) is
// terminated, whatever the step was called.
package triage
