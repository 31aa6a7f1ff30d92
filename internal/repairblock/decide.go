package repairblock

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/karpenter"
)

// state is how the block of a pool stands.
type state int

const (
	// bare: there is none, and never was.
	bare state = iota
	// follows: what stands on the pool is in force.
	follows
	// refused: what stands there cannot be followed.
	refused
	// lost: it is hidden or gone, because its schema is lost.
	lost
	// vanished: it is gone since its schema was lost, or may have been.
	vanished
	// unsure: it is gone, and nobody can tell what became of its schema.
	unsure
	// hidden: it is not seen, though nobody has removed it, or it is too early to tell.
	hidden
	// removed: somebody has removed it.
	removed
)

// view is how much is known of the schema when pools are judged.
type view struct {
	definition
	isKnown bool // what the definition says
	// isSettled says that the pools were listed when every API server had followed the
	// definition.
	isSettled bool
}

// standing returns how the block of a pool stands, of which fault says why it cannot be
// followed, and last is the one that was in force before.
func standing(pool *karpenter.NodePool, fault error, last *good, v view) state {
	switch {
	case pool.Spec.Repair == nil && last == nil:
		return bare
	case v.isKnown && !v.hasBlock: // a block that is seen still will not be in a moment
		return lost
	case pool.Spec.Repair != nil && fault == nil:
		return follows
	case pool.Spec.Repair != nil:
		return refused
	case !v.isKnown:
		return unsure
	case !v.isSettled:
		return hidden
	case last.Definition != v.version:
		return vanished
	case last.Generation == pool.Generation: // removing it would have made another
		return hidden
	}
	return removed
}

// remember returns the last block of a pool that could be followed, after the pool was
// seen so.
func remember(pool *karpenter.NodePool, is state, fault error, last *good, v view) *good {
	stands := pool.Spec.Repair != nil
	switch {
	case is == removed:
		return nil
	case !stands || fault != nil && last == nil:
		return last
	}
	next := &good{Pool: pool.Name, UID: pool.UID, Generation: pool.Generation}
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

// leftAlone is what comes of a pool where somebody has asked for something that nobody
// can make out.
const leftAlone = ", and no node is repaired unless a RepairPolicy governs it"

// problem says why what stands on a pool is not what is in force.
func problem(is state, fault error, last *good, lastFault error) string {
	goesOn := "the last good block stays in force"
	switch {
	case last == nil:
		goesOn = "no block is in force, for none before it is known" + leftAlone
	case lastFault != nil:
		goesOn = fmt.Sprintf("no block is in force, for the last one cannot be followed any more (%s)", inSentence(lastFault)) + leftAlone
	}
	switch is {
	case refused:
		return fmt.Sprintf("the block cannot be followed: %s; %s", inSentence(fault), goesOn)
	case lost:
		return "the schema of " + definitionName + " has lost spec.repair; " + goesOn
	case vanished:
		return "spec.repair is gone since the schema of " + definitionName + " has changed, and may have been pruned; " + goesOn
	case unsure:
		return "spec.repair is gone, and whether somebody has removed it or its schema was lost cannot be told, because CustomResourceDefinition " +
			definitionName + " cannot be read; " + goesOn
	case hidden:
		return "spec.repair is not seen, and it is not certain yet that somebody has removed it; " + goesOn
	}
	return ""
}

// inSentence are the words of a fault, of which the last may be a sentence by itself.
func inSentence(fault error) string { return strings.TrimSuffix(fault.Error(), ".") }

func sameBlock(a, b *v1alpha1.RepairSpec) bool { return equality.Semantic.DeepEqual(a, b) }
