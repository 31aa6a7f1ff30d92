package repairblock

import (
	"fmt"
	"maps"
	"slices"

	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/treat"
)

// sendEvents sends Events about new versions of blocks, and about problems when they change.
func (k *Store) sendEvents(inForce map[string]*Pool) {
	lostOnes := 0
	for _, name := range slices.Sorted(maps.Keys(inForce)) {
		p, is := k.pools[name], inForce[name]
		if p.is == lost {
			lostOnes++
		}
		if is.Problem == p.lastReported && !p.isNew || p.is == hidden { // hidden is temporary
			continue
		}
		p.lastReported = is.Problem
		event := treat.Event{Policy: treat.AboutNodePool(p.NodePool), Message: "Repair: " + is.Problem + "."}
		switch p.is {
		case refused:
			event.EventReason = treat.RepairBlockRefused
			event.Message += " Write spec.repair anew."
			k.cfg.Logger.Error("repair block refused", "nodePool", name, "err", p.fault)
		case lost:
			event.EventReason = treat.RepairSchemaLost
			event.Message += k.recoveryHint(is)
		case vanished, unsure:
			event.EventReason = treat.RepairBlockVanished
			event.Message += k.removalHint(is, " Write spec.repair again to put it back, or enabled: false there to switch it off; to drop it for good:")
			k.cfg.Logger.Warn("repair block vanished", "nodePool", name, "problem", is.Problem)
		case applied:
			event.EventReason, event.Message = treat.Accepted, "Repair: spec.repair is in force."
			k.cfg.Logger.Info("repair block in force", "nodePool", name)
		default: // the block was removed or dropped
			event.EventReason, event.Message = treat.Accepted, "Repair: no block is in force any more."
		}
		k.cfg.Event(event)
	}
	if isOut := lostOnes > 0; isOut != k.logged.schemaLoss {
		k.logged.schemaLoss = isOut
		if isOut {
			k.cfg.Logger.Error("schema of repair blocks lost, the last good ones stay in force", "customResourceDefinition", definitionName, "nodePools", lostOnes, "restore", k.cfg.Restore)
		} else {
			k.cfg.Logger.Info("schema of repair blocks no longer lost", "customResourceDefinition", definitionName)
		}
	}
}

// recoveryHint says how to get the schema back, and what to do until then. To write the block is
// no solution, because the API server does not store it.
func (k *Store) recoveryHint(is *Pool) string {
	hint := " The next write to this NodePool deletes the block from it. Apply deploy/karpenter/nodepool-repair.json again, or let the controller do so with --restore-nodepool-schema and deploy/extras/restore-rights.yaml."
	if k.cfg.Restore {
		hint = " The controller puts the schema back."
	}
	if is.Block != nil {
		hint += fmt.Sprintf(" Until it is back, what is written to spec.repair is lost; to stop repairs: kubectl annotate nodepool %s %s=true.", is.Name, karpenter.OurDoNotRepairAnnotation)
	}
	if k.cfg.Restore {
		return hint
	}
	return hint + k.removalHint(is, " To switch the block off, for good if it was deleted from the NodePool, otherwise until the schema is back:")
}

// removalHint says, after the given words, how to have no block.
func (k *Store) removalHint(is *Pool, words string) string {
	if is.Block == nil {
		return ""
	}
	return fmt.Sprintf("%s kubectl delete controllerrevisions -n %s -l %s=%s", words, k.cfg.Namespace, RevisionLabel, revisionLabelValue(is.Name))
}
