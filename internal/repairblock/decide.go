package repairblock

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
)

// state is the state of a pool's block.
type state int

const (
	// bare: the pool has no block and never had one.
	neverSet state = iota
	// follows: the block on the pool is in force.
	applied
	// refused: the block on the pool is invalid.
	refused
	// lost: the block is hidden or pruned, because the CRD lacks the schema.
	lost
	// vanished: the block is gone, and was or may have been pruned.
	vanished
	// unsure: the block is gone, and the history of the schema is unknown.
	unsure
	// hidden: the block is not visible although it was not removed, or it is too early to decide.
	hidden
	// removed: a user removed the block.
	removed
)

// view is what is known of the schema when the pools are evaluated.
type view struct {
	definition
	isKnown bool // the definition was read
	// isSettled says that the pools were listed after every API server had applied the
	// definition.
	isSettled bool
}

// stateOf returns the state of a pool's block. fault says why the block is invalid, and
// last is the block that was in force before.
func stateOf(pool *karpenter.NodePool, fault error, last *lastGood, v view) state {
	switch {
	case pool.Spec.Repair == nil && last == nil:
		return neverSet
	case v.isKnown && !v.hasBlock: // a block that is still visible will disappear in a moment
		return lost
	case pool.Spec.Repair != nil && fault == nil:
		return applied
	case pool.Spec.Repair != nil:
		return refused
	case !v.isKnown:
		return unsure
	case !v.isSettled:
		return hidden
	case last.Definition != v.version:
		return vanished
	case last.Generation == pool.Generation: // a removal would have changed the generation
		return hidden
	}
	return removed
}

// updateLastGood returns the last valid block of a pool, updated by the pool's current state.
func updateLastGood(pool *karpenter.NodePool, is state, fault error, last *lastGood, v view) *lastGood {
	stands := pool.Spec.Repair != nil
	switch {
	case is == removed:
		return nil
	case !stands || fault != nil && last == nil:
		return last
	}
	next := &lastGood{Pool: pool.Name, UID: pool.UID, Generation: pool.Generation}
	if last != nil {
		next.Definition, next.Block, next.Unknown = last.Definition, last.Block, last.Unknown
	}
	if fault == nil {
		next.Block = pool.Spec.Repair
	}
	if v.isKnown && v.hasBlock && v.isSettled {
		next.Definition = v.version
	}
	return next
}

// notRepairedNote is the consequence for a pool with a block of which no valid version is known.
const notRepairedNote = ", and no node is repaired unless a RepairPolicy applies to it"

// problem says why the block on a pool is not in force.
func problem(is state, fault error, last *lastGood, lastFault error) string {
	goesOn := "the last good block stays in force"
	switch {
	case last == nil:
		goesOn = "no block is in force, because no earlier valid version is known" + notRepairedNote
	case lastFault != nil:
		goesOn = fmt.Sprintf("no block is in force, because the last valid version is invalid now (%s)", inSentence(lastFault)) + notRepairedNote
	}
	switch is {
	case refused:
		return fmt.Sprintf("the block cannot be followed: %s; %s", inSentence(fault), goesOn)
	case lost:
		return "the schema of " + definitionName + " has lost spec.repair; " + goesOn
	case vanished:
		return "spec.repair is gone since the schema of " + definitionName + " has changed, and may have been pruned; " + goesOn
	case unsure:
		return "spec.repair is gone, and the controller cannot determine whether a user removed it or its schema was lost, because CustomResourceDefinition " +
			definitionName + " cannot be read; " + goesOn
	case hidden:
		return "spec.repair is not visible, and its removal is not confirmed yet; " + goesOn
	}
	return ""
}

// inSentence returns the text of a fault without a final period, for use in a sentence.
func inSentence(fault error) string { return strings.TrimSuffix(fault.Error(), ".") }

func sameBlock(a, b *v1alpha1.RepairSpec) bool { return equality.Semantic.DeepEqual(a, b) }
