// Package triage decides what to do about each node, and gives the reason.
//
// The caller supplies facts about nodes, the rules and the current time. The core
// returns one [Plan] per node. The same input always gives the same plans. No sequence
// of calls exceeds a bound of a rule, and no node has two treatments at once. Every
// decision has a reason, including the decision to do nothing.
//
// The package has no clock, no network access and no logger. It imports only the
// standard library. It never writes to the cluster: the caller does.
//
// # How to use it
//
// A [Core] starts empty. Before the first decision the caller supplies:
//
//   - the rails ([Core.SetRails]), before anything else,
//   - the rules ([Core.SetRule]) and the nodes ([Core.Observe]),
//   - the decisions and the storms of the previous process ([Core.Resume],
//     [Core.ResumeStorm]),
//   - the allowances ([Core.Allow]), if another component limits treatments as well, as
//     a disruption budget does. It sets them again whenever that limit changes.
//
// The caller then calls [Core.Loaded] once. Until Loaded the core begins nothing,
// because a percentage of half of the nodes is the wrong bound. A treatment that is
// already in progress may take its next step.
//
// After each call that takes the time, the caller calls [Core.NextWoken] until it
// returns no name. It makes each named node match its [Plan]. The caller calls
// [Core.Advance] at the time that [Core.Deadline] returns. Reading a plan changes
// nothing.
//
// The caller has these duties:
//
//   - It calls the core from one goroutine at a time.
//   - It reports each response that it finds on a node under the rule that placed it
//     ([Node.Taints], [Node.Treatments]). A decision occupies a slot under the cap of
//     its rule at once. The slot becomes free when the facts have shown the response
//     and then stop showing it.
//   - It calls [Core.Abandon] when a decision was not carried out and its write can no
//     longer take effect. It also does so when a plan asks for a release, or calls off
//     a step, and the response is neither on the node nor in flight. Nothing else frees
//     a slot whose response the facts never showed, not even the removal of the rule.
//   - Immediately before it writes a decision, it asks whether the node exceeds the rails now
//     ([Core.ExceedsRails], [Core.ExceedsClosing]), and then calls [Core.CallOff] instead. When the
//     write of a treatment may have succeeded, it calls [Core.NoteSent].
//   - It stores what a restarted core needs and supplies it again: the memories
//     ([Plan.Remember], [Node.Memories]), the start of a recovery
//     ([PlannedTreatment.HealthySince], [Treatment.HealthySince]), the storms
//     ([Core.Population]), the treatments that the pace counts ([Core.Starts]), and the deleted
//     nodes that still occupy a slot ([Core.AwaitingReplacement]). If a rule counts from the creation of the node, it also
//     stores that the node was initialized ([Plan.Initialized], [Node.Initialized]).
//   - It stores the attempts before their first step, and supplies them as [Node.Attempts]. A node
//     that replaces another one inherits them.
//   - It calls [Core.Keep] if rules may exist that it cannot read now. The core releases
//     the response of a rule that is not set, unless Keep says that it cannot be read.
//
// # Conditions
//
// A rule selects nodes by label. A [Signal] names one condition in one status. All
// signals of a rule that name the same condition form a group. For a node, a group is
//
//   - matched, if at least one of its signals matches, and the signal that decides has another
//     duration than [Never],
//   - unclear, if the condition is Unknown and no signal matches,
//   - not matched otherwise.
//
// A condition that the node does not report has the status [Missing]. Unknown with
// reason [AgentSilent] means that the agent stopped reporting. It matches only signals
// with [Signal.EvenSilent], and is unclear otherwise.
//
// A rule with [When.All] is matched if all groups are matched, and not matched if any
// group is not matched. Any other rule is matched if at least one group is matched, and
// not matched if no group is matched or unclear. In all remaining cases the rule is
// unclear.
//
// A node becomes unhealthy under a rule when the rule is matched, and healthy again when
// it is not matched. While the rule is unclear, the node keeps its state, and nothing
// begins or ends. A rule that is new, changed or loaded after a restart has no earlier
// state. If this rule is unclear, the node is unhealthy if it has a response of the
// rule, or if clocks that were kept or remembered show that it was unhealthy.
//
// # Clocks
//
// Each group has a clock. It starts when the group becomes matched:
//
//   - It starts at the transition time of the condition: a condition that is reported late
//     does not wait again. It does not start before the last version of the node arrived
//     that had another status ([Node.Previous], rounded up to whole seconds), and never in
//     the future. Unknown and a missing condition do not count as another status, because
//     they do not show that the node was healthy. The clock starts at the caller's time if
//     the transition time is less than two seconds ago, because it has whole seconds, if
//     there is none, or if only the reason has changed.
//   - If the core evaluates the node against this rule for the first time, the clock starts
//     when the condition got its status, by the same rules. A change of the reason does not
//     matter then.
//   - If the signals have [Signal.FromCreation], it starts at the creation of the node.
//     The group stops matching for good once the node is initialized.
//
// The clock keeps running through Unknown and through a change to another matching
// status. It stops when the group is not matched.
//
// A node is ready for work when it is Ready and has no startup taints
// ([Node.Starting]). A node is initialized if the caller says so, or once the core saw
// it ready for work. The caller also reports startup taints as the condition
// [StartupTaints], so a rule can match them.
//
// The time of a group is the start of its clock plus the duration of the matching
// signal. If several signals match, a signal that names the reason wins over a signal
// for any reason; among those the shortest duration wins. A rule with [When.All]
// becomes eligible at the latest time of its groups. Any other rule becomes eligible at
// the earliest time of its matched groups.
//
// # Memories
//
// A restarted core derives the start of a clock from the transition time of the
// condition. A plan asks to remember a start that cannot be derived, because the
// transition time
//
//   - is before the last version with another status, or is not set,
//   - was in the future at the change, so a clock is wrong, or
//   - has moved since.
//
// Two seconds before, because times have whole seconds, and a minute after do not count,
// so an ordinary failure needs no memory. Memories exist for groups with a duration, because
// only there the start matters. They also exist for every unclear group, because nothing
// else shows that the node was unhealthy. They do not exist for rules on dry run or for
// conditions that the node does not report.
//
// Without a memory, a restarted core counts from the transition time. If that is not set
// or in the future, it counts from the restart. The core uses a memory only while the
// condition still has the transition time that the memory was written with.
//
// # Bounds
//
// A gate is closed while more nodes are unhealthy than it allows. It also counts healthy
// nodes whose treatment still exists, and terminated nodes until they are replaced. A
// cap is full when as many nodes are in treatment as it allows. A closed gate or a full
// cap stops new treatments. Running treatments continue, and so does their escalation.
//
// A percentage counts the nodes that the rule selects now, with these exceptions:
//
//   - A gate, or a minimum of healthy nodes, also counts deleted nodes that are not
//     replaced yet. So the deletion of a node does not change the gate.
//   - A cap does not count nodes that are younger than the first node that is to be
//     replaced, unless they replace a deleted node. So a replacement does not raise the
//     cap.
//   - A cap of 100% also counts deleted nodes that are not replaced yet.
//
// A node is in treatment from the decision until the response is gone. After a
// termination the slot stays occupied until a replacement is ready for work, or until
// [ReplacementWait] after the deletion of the node. A replacement is a node that the
// rule selects and that was created after the decision. One node replaces one node: the
// node with the earliest decision, among all rules that select the replacement. Of nodes that
// were ready for work before [Core.Loaded] it is not known whether the previous process has
// counted them: they replace nodes only as far as there are more of them than replace
// other nodes or were ready at the deletion ([Grant.ReadyNeeded]). A node counts as terminated if it
// disappears while the facts show a treatment with [Treatment.Deletes], whatever the action of the
// step.
//
// # Foreign taints
//
// A NoExecute taint that the caller cannot prove to be its own ([Node.Foreign]) counts
// under the cap of every rule that selects the node and places NoExecute with that key.
// The rule places no taint of its own there and waits for nothing. The slot becomes free
// when the facts stop showing the taint. Foreign taints can exceed a cap; then nothing
// begins. A taint that was placed for another rule counts under that rule only.
//
// # Pools
//
// Rules of one pool share their caps. The treatments of all of them, including deleted
// nodes that are not replaced yet, count under the cap of each. Each cap is still a share
// of the nodes that its own rule selects. A free slot goes to the first node in the order
// of service, whichever rule treats it. A rule that moves to another pool takes its
// treatments along. A removed rule stays in its pool while a response of it is known. The
// counts of unhealthy nodes, the gates and the storms are not shared.
//
// # Allowances
//
// An [Allowance] limits how many more treatments a rule may begin. Each first step takes
// one slot from every allowance in the pool of the rule, or from the allowance of the rule
// if it has no pool. Later steps, restored decisions and treatments that were found on
// nodes take none. At zero nothing begins until the caller sets a new allowance;
// treatments in progress continue. An abandoned decision returns nothing, because only
// the component that counts knows what that means. An allowance may be set before its
// rule. It survives changes of the rule and ends with it.
//
// # Rails
//
// [Rails] limit all rules together, in addition to the bounds of each rule. They stop new
// responses; responses in progress continue, and so do escalation and recovery.
//
//   - [Rails.Hold] holds all rules of a stage, as [Rule.Hold] holds a rule.
//   - [Rails.InTreatment] counts the nodes in a disruptive treatment: with a treatment or a
//     NoExecute taint, decided or in the facts, with a foreign taint that a rule counts, or
//     deleted and not replaced yet. A node counts once. [Rails.Topology] counts the same by
//     the values of a label. A node that is already in treatment needs no further room.
//   - [Rails.Unschedulable] counts the nodes that are closed to new pods: by a cordon or a taint
//     of others ([Node.Closed]), or by a taint of a rule with NoSchedule or NoExecute, decided
//     or in the facts. A node that others have closed counts already: a taint needs no further
//     room there, but it waits while the limit is exceeded. Without room a rule places nothing
//     and waits.
//   - [Rails.KeepLast] protects the last node that is ready for work, open to new pods, not
//     dedicated ([Node.Dedicated]) and not in treatment.
//   - [Rails.Pace] counts the treatments that began within its period, except those that were
//     abandoned before anything was written. Taints and later steps are not paced. Starts are counted by sixtieths of the period.
//   - [Rails.MaxAttempts] counts the attempts of a node within a window ([Node.Attempts]). All
//     steps of one episode are one attempt. An attempt of the rule that began after its conditions
//     began to match belongs to the current episode, which may then begin again.
//
// A percentage refers to all nodes, or to the nodes with the value of the label, with the
// exceptions of caps.
//
// A taint that closes a node needs a decision, like every response with a slot. The decision is
// about the node, not about a rule: while it exists, every rule may place its taint. It ends
// when the facts have shown a taint that closes the node and stop showing it, or when the
// caller reports that none is in flight ([Plan.Reopen], [Core.Reopen]). Before Loaded no new
// taint closes a node.
//
// # Windows
//
// A [Window] says when the disruptive steps of a rule may begin: treatments, each step of a
// ladder, and NoExecute taints. While it is closed, treatments and next steps wait, and
// NoSchedule takes the place of NoExecute. Responses that the facts show stay. A step that was
// decided and never observed is called off when the window closes. At the opening, episodes are
// served in their usual order, which is by age.
//
// A step with [Step.Urgent] does not wait. Neither does a node with a condition whose signal has
// [Signal.Urgent], once this condition has matched for its duration.
//
// # Storms
//
// A storm begins when a gate with a cooldown closes. The gate stays closed until its
// limit has not been exceeded for the whole cooldown. The core checks this once per call,
// after counting all changes of the call and before it begins treatments, and not before
// Loaded. A restored storm continues from the time at which it calmed down. If it had not
// calmed down, its cooldown starts at Loaded or later. The current definition of the rule
// applies to a storm. A storm ends with its rule, when the cooldown is removed from the
// rule, or after the cooldown, even if no node is unhealthy.
//
// # Responses
//
// A response is a taint or a ladder of treatments. Eligible nodes are served in the
// order of the time since when they wait, the precedence, the kind and the name of the
// rule, and the name of the node. A node has one treatment at a time across all rules. One
// control-plane node at a time is in treatment across the cluster.
//
// A treatment does not begin while one of these holds. The plan gives the first as the
// reason:
//
//  1. The rule is on hold ([Rule.Hold], [Rails.Hold]).
//  2. The node is on hold ([Node.Hold]).
//  3. The window is closed.
//  4. A veto protects the node.
//  5. Another rule treats the node.
//  6. The node was treated as often as [Rails.MaxAttempts] allows.
//  7. Another control-plane node is in treatment.
//  8. The gate is closed.
//  9. The cap is full.
//
// 10. The allowance is zero.
// 11. Another rail prevents it.
//
// A taint waits only for holds, for the cap of NoExecute, for the window and for the rails. If the
// cap is full, if the window is closed, if a rail prevents a disruptive treatment, or if the rule
// excludes control-plane nodes, NoSchedule takes the place of NoExecute. If several taint rules
// match a node, only the rules with the highest declared effect place their taint.
//
// A rule with a weaker effect than NoExecute takes no slots. If the rule had NoExecute
// before, the slots of that time stay occupied. The slot of a NoExecute taint in the
// facts becomes free when the taint is gone. The slot of a taint that the facts never
// showed becomes free when the caller abandons it. For the second case the plan asks for
// a release, beside the weaker taint. If the rule changes back to NoExecute before that,
// the slots stay as they were.
//
// # Decided responses that have not begun
//
// A decided NoExecute taint begins when the facts show it. Until then it may begin only
// while the rule is matched and eligible, neither the rule nor the node is on hold, and the window
// is open. If it may not begin, the rule keeps what is on the node, and the plan asks for a
// release. The caller then makes sure that no write is in flight and abandons the decision. If the
// taint may begin again before that, the decision remains. Taints on the node stay, also if the key
// of the rule has changed, because a taint with another key is a new taint. The
// exception: on a control-plane node that the rule excludes, NoSchedule replaces NoExecute in any
// case, and a decided NoExecute is called off.
//
// A decided step of a ladder also begins when the facts show it. Until then:
//
//   - The first step may begin only while the rule is matched and eligible, neither the rule
//     nor the node is on hold, no veto protects the node, the window and the gate are open, and
//     [Rails.MaxAttempts] allows it.
//   - A later step may begin only while the rule is matched, neither the rule nor the node is
//     on hold, the window is open, and no veto protects the node.
//   - No step begins on a node with a correlated failure.
//
// If a step may not begin, the plan wants the step that the facts show, if any. For a
// first step it asks for a release. For a later step it only calls off that step
// ([Plan.Cancel]), because the earlier steps stay. Once the caller abandons the step,
// the step in the facts is the current step again, and the next step may be decided
// again. If the step may begin before it is abandoned, the decision remains. A step that
// the facts have shown and stop showing is over. If the step before it still exists, that
// is the current step again.
//
// A decision that is abandoned with a retry delay waits for that delay, and its turn
// counts from the end of the delay. A decision that is abandoned without a delay keeps
// its turn and may be decided again at once. A released response always has a cause that
// prevents a new decision, so a caller that abandons all releases becomes idle.
//
// # Recovery
//
// A treatment is removed when the node is healthy. If the rule has a [Recovery], a
// treatment that the facts have shown stays until the node has been healthy for the whole
// delay, or until a user confirms that the node is healthy. A confirmation ends either
// wait, and has no effect on an unhealthy node. A later transition time with an unchanged
// status means that the condition changed in between unnoticed; the wait starts again.
//
// While the rule is unclear, nothing ends, confirmed or not. The wait starts again when
// the rule is clearly not matched. During the wait the treatment keeps its slot and takes
// no next step.
//
// A rule that is changed or loaded after a restart continues the wait from what it knows,
// or else from the time stored with the treatment. It counts from no earlier than the
// last status change of each condition that it reads, and from no earlier than the last
// time at which it knew the node to be unhealthy. If nothing is known or stored, the wait
// begins. There is no wait for a node that the rule no longer selects, for a removed
// rule, or on dry run.
//
// # Dry run
//
// A rule on dry run is evaluated and counted like any other rule, and decides nothing. It
// takes no slot, wants no taint and no treatment, supersedes no rule and delays no rule.
// Its existing and its decided responses are removed, even while the rule is unclear and even
// if the rule is also on hold. They keep their slots until they are gone, so that no bound is
// exceeded when the dry run ends.
//
// For a node on which it is matched and eligible it reports what it would begin, and what
// would prevent that now ([Reason.Besides]). A rule whose stage is on hold ([Rails.Hold])
// reports the same. Both look at this node and rule alone: they do not say that a stronger
// taint would replace theirs. The next call may change what would prevent it, and does not
// wake the node for that.
//
// # Impact
//
// [Core.Impact] returns what a rule would find if it were new. The rule does not need to
// be set. Nodes that have just begun to match count, even if the rule has a duration.
// Nodes for which the rule is unclear do not count, even if the rule is set and knows more
// about them. [Impact.Open] counts the nodes that could match once they report the
// missing conditions. Impact needs no time and no rules, and changes nothing. Several goroutines may
// call it at once, as long as no other method runs.
package triage
