package cleanup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	remediationv1alpha1 "github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/agentlease"
	"github.com/resourcestack/autohealer/internal/attempts"
	"github.com/resourcestack/autohealer/internal/configmaps"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/nodelease"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/taintkey"
	"github.com/resourcestack/autohealer/internal/treat"
)

// nodes removes the taints that a node's record proves to be Autohealer's, and the record.
func (c *cleaner) nodes(ctx context.Context) error {
	keys, err := c.keys(ctx)
	if err != nil {
		return err
	}
	var errs []error
	list := &corev1.NodeList{}
	err = c.each(ctx, list, func() error {
		for i := range list.Items {
			node := &list.Items[i]
			errs = append(errs, retryOnConflict(func() error {
				err := c.node(ctx, node, keys)
				if err != nil { // the next attempt needs the newest version
					_ = c.Client.Get(ctx, client.ObjectKeyFromObject(node), node)
				}
				return client.IgnoreNotFound(err)
			}))
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// keys returns the taint keys that Autohealer uses or has used: those of sets in the API
// and in ConfigMaps, of stored revisions, and of the records on nodes. The records also
// contain the keys of deleted sets.
func (c *cleaner) keys(ctx context.Context) (map[string]bool, error) {
	keys := map[string]bool{}
	add := func(key string) {
		if _, reserved := taintkey.Owner(key); !reserved {
			keys[key] = true
		}
	}
	sets := &v1alpha1.ConditionSetList{}
	err := c.each(ctx, sets, func() error {
		for i := range sets.Items {
			add(sets.Items[i].Spec.TaintKey)
		}
		return nil
	})
	kept, keptErr := configmaps.NewRevisionStore(c.Client, c.Namespace).InForce(ctx)
	for _, set := range kept {
		add(set.Spec.TaintKey)
	}
	maps := &corev1.ConfigMapList{}
	mapsErr := c.each(ctx, maps, func() error {
		for i := range maps.Items {
			// An unreadable revision was never in force. The one before it is stored.
			if version, err := configmaps.Read(&maps.Items[i]); err == nil {
				for _, set := range version.Sets {
					add(set.Spec.TaintKey)
				}
			}
		}
		return nil
	}, client.InNamespace(c.Namespace), client.MatchingLabels{configmaps.Label: configmaps.LabelValue})
	nodes := &corev1.NodeList{}
	nodesErr := c.each(ctx, nodes, func() error {
		for i := range nodes.Items {
			note, _ := ownership.Read(nodes.Items[i].Annotations) // unreadable records are reported later
			for _, taint := range slices.Concat(note.Taints, note.Unrecognized.Taints) {
				add(taint.Key)
			}
		}
		return nil
	})
	return keys, errors.Join(err, keptErr, mapsErr, nodesErr)
}

func (c *cleaner) node(ctx context.Context, node *corev1.Node, keys map[string]bool) error {
	var doubts []unprovenObject
	_, hasRecord := node.Annotations[ownership.Annotation]
	note, err := ownership.Read(node.Annotations)
	if err != nil {
		doubts = append(doubts, unprovenObject{"annotation " + ownership.Annotation + " of node " + node.Name, "it cannot be read (" + err.Error() + ")",
			fmt.Sprintf("kubectl annotate node %s %s-", node.Name, ownership.Annotation)})
		note, hasRecord = ownership.Record{}, false
	}
	var stay, ours []corev1.Taint
	for _, taint := range node.Spec.Taints {
		if note.Owns(taint) || note.Keeps(taint) {
			ours = append(ours, taint)
			continue
		}
		stay = append(stay, taint)
		if keys[taint.Key] || strings.HasPrefix(taint.Key, ownDomain) {
			doubts = append(doubts, unprovenObject{fmt.Sprintf("taint %s:%s of node %s", taint.Key, taint.Effect, node.Name), "it has a key of Autohealer, and no record of this node names it",
				fmt.Sprintf("kubectl taint node %s %s:%s-", node.Name, taint.Key, taint.Effect)})
		}
	}
	var annotations []string
	if hasRecord {
		annotations = append(annotations, ownership.Annotation)
	}
	if _, has := node.Annotations[attempts.Annotation]; has {
		annotations = append(annotations, attempts.Annotation)
	}
	if !c.DryRun && len(ours)+len(annotations) > 0 {
		if err := c.patchNode(ctx, node, stay, annotations); err != nil {
			return err
		}
	}
	for _, d := range doubts {
		c.left(d)
	}
	for _, taint := range ours {
		c.removed("taint %s:%s of node %s", taint.Key, taint.Effect, node.Name)
	}
	for _, annotation := range annotations {
		c.removed("annotation %s of node %s", annotation, node.Name)
	}
	return nil
}

// ownDomain is the prefix of the keys of the default sets.
const ownDomain = "autohealer.resourcestack.com/"

// patchNode writes the remaining taints on this version of a node, and removes annotations.
func (c *cleaner) patchNode(ctx context.Context, node *corev1.Node, taints []corev1.Taint, annotations []string) error {
	gone := map[string]any{}
	for _, annotation := range annotations {
		gone[annotation] = nil
	}
	about := map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion, "annotations": gone}
	patch, err := json.Marshal(map[string]any{"metadata": about, "spec": map[string]any{"taints": taints}})
	if err != nil {
		return err
	}
	answer := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	answer.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	if err := c.Client.Patch(ctx, answer, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(treat.FieldManager)); err != nil {
		return fmt.Errorf("patching node %s: %w", node.Name, err)
	}
	return nil
}

// nodeClaims removes the mark from claims that are not being deleted. A claim that is being
// deleted takes its mark with it.
func (c *cleaner) nodeClaims(ctx context.Context) error {
	write := treat.NewWriter(c.Client)
	var errs []error
	list := &karpenter.NodeClaimList{}
	err := c.each(ctx, list, func() error {
		for i := range list.Items {
			claim := &list.Items[i]
			mark, err := ownership.ReadMark(claim.Annotations)
			what := "annotation " + ownership.MarkAnnotation + " of NodeClaim " + claim.Name
			switch {
			case err != nil:
				c.left(unprovenObject{what, "it cannot be read (" + err.Error() + ")", fmt.Sprintf("kubectl annotate nodeclaim %s %s-", claim.Name, ownership.MarkAnnotation)})
			case mark == nil, !claim.DeletionTimestamp.IsZero():
			default:
				if !c.DryRun {
					if _, err := write.UnmarkClaim(ctx, claim, *mark); err != nil {
						errs = append(errs, err)
						continue
					}
				}
				c.removed("%s", what)
			}
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// agentLeases deletes the liveness Leases of agents.
func (c *cleaner) agentLeases(ctx context.Context) error {
	list := &coordinationv1.LeaseList{}
	return c.each(ctx, list, func() error {
		errs := make([]error, 0, len(list.Items))
		for i := range list.Items {
			lease := &list.Items[i]
			errs = append(errs, c.remove(ctx, lease, "Lease "+lease.Namespace+"/"+lease.Name))
		}
		return errors.Join(errs...)
	}, client.InNamespace(c.AgentNamespace), client.MatchingLabels(agentlease.LeaseLabels()))
}

// nodeLeases deletes the node Leases that health checks hold. medik8s' own controller holds
// them under the same names, so only Leases without any other writer are deleted.
func (c *cleaner) nodeLeases(ctx context.Context) error {
	list := &coordinationv1.LeaseList{}
	return c.each(ctx, list, func() error {
		var errs []error
		for i := range list.Items {
			lease := &list.Items[i]
			if lease.Spec.HolderIdentity == nil || !nodelease.IsHealthCheck(*lease.Spec.HolderIdentity) {
				continue
			}
			what := "Lease " + lease.Namespace + "/" + lease.Name
			isOthers := func(f metav1.ManagedFieldsEntry) bool { return f.Manager != treat.FieldManager }
			if len(lease.ManagedFields) == 0 || slices.ContainsFunc(lease.ManagedFields, isOthers) {
				c.left(unprovenObject{what, *lease.Spec.HolderIdentity + " holds it, and others have written it", fmt.Sprintf("kubectl -n %s delete lease %s", lease.Namespace, lease.Name)})
				continue
			}
			errs = append(errs, c.remove(ctx, lease, what))
		}
		return errors.Join(errs...)
	}, client.InNamespace(nodelease.Namespace))
}

// revisions deletes the last good revisions of ConfigMaps and of repair blocks.
func (c *cleaner) revisions(ctx context.Context) error {
	kinds := []string{configmaps.RevisionLabel, repairblock.RevisionLabel}
	errs := make([]error, 0, len(kinds))
	for _, label := range kinds {
		list := &appsv1.ControllerRevisionList{}
		errs = append(errs, c.each(ctx, list, func() error {
			errs := make([]error, 0, len(list.Items))
			for i := range list.Items {
				errs = append(errs, c.remove(ctx, &list.Items[i], "ControllerRevision "+c.Namespace+"/"+list.Items[i].Name))
			}
			return errors.Join(errs...)
		}, client.InNamespace(c.Namespace), client.HasLabels{label}))
	}
	return errors.Join(errs...)
}

// mirrors deletes the mirrors of sets in ConfigMaps and of repair blocks.
func (c *cleaner) mirrors(ctx context.Context) error {
	sets, policies := &v1alpha1.ConditionSetList{}, &v1alpha1.RepairPolicyList{}
	only := client.HasLabels{v1alpha1.MirrorLabel}
	return errors.Join(
		c.each(ctx, sets, func() (err error) {
			for i := range sets.Items {
				err = errors.Join(err, c.remove(ctx, &sets.Items[i], "ConditionSet "+sets.Items[i].Name))
			}
			return err
		}, only),
		c.each(ctx, policies, func() (err error) {
			for i := range policies.Items {
				err = errors.Join(err, c.remove(ctx, &policies.Items[i], "RepairPolicy "+policies.Items[i].Name))
			}
			return err
		}, only),
	)
}

// remediations names the remediations that health checks and repair policies had when the controller
// stopped. They stay, because medik8s' controller can continue those of health checks, and a remediator
// may be at work.
func (c *cleaner) remediations(ctx context.Context) error {
	checks, policies := &remediationv1alpha1.NodeHealthCheckList{}, &v1alpha1.RepairPolicyList{}
	return errors.Join(c.each(ctx, checks, func() error {
		for i := range checks.Items {
			check := &checks.Items[i]
			if meta.IsStatusConditionTrue(check.Status.Conditions, remediationv1alpha1.StandingBack) {
				continue
			}
			for _, node := range check.Status.UnhealthyNodes {
				for _, remediation := range node.Remediations {
					o := remediation.Resource
					fmt.Fprintf(c.Out, "NodeHealthCheck %s: node %s still has %s %s, which medik8s' controller can continue; to end it: %s\n", check.Name, node.Name, o.Kind, o.Name, kubectl("delete", o))
				}
			}
		}
		return nil
	}), c.each(ctx, policies, func() error {
		for i := range policies.Items {
			policy := &policies.Items[i]
			template := policy.Spec.RemediationTemplate
			if template == nil || policy.Status.Repairing == 0 {
				continue
			}
			of := corev1.ObjectReference{APIVersion: template.APIVersion, Kind: strings.TrimSuffix(template.Kind, "Template"), Namespace: template.Namespace}
			fmt.Fprintf(c.Out, "RepairPolicy %s: nodes may still have a %s that is owned by the policy; to see them: %s\n", policy.Name, of.Kind, kubectl("get", of))
		}
		return nil
	}))
}

// kubectl returns a command about an object, or about all objects of a kind if the reference has no name.
func kubectl(verb string, o corev1.ObjectReference) string {
	group, version, _ := strings.Cut(o.APIVersion, "/")
	command := strings.TrimSpace(fmt.Sprintf("kubectl %s %s.%s.%s %s", verb, o.Kind, version, group, o.Name))
	if o.Namespace != "" {
		command += " -n " + o.Namespace
	}
	return command
}

// ledger deletes the ConfigMap of the ledger.
func (c *cleaner) ledger(ctx context.Context) error {
	return c.deleteNamed(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: ledger.Name}}, "ConfigMap")
}

// leaderLease deletes the leader election Lease.
func (c *cleaner) leaderLease(ctx context.Context) error {
	return c.deleteNamed(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.LeaseName}}, "Lease")
}

// deleteNamed deletes an object with a fixed name, if it exists.
func (c *cleaner) deleteNamed(ctx context.Context, object client.Object, kind string) error {
	what := kind + " " + object.GetNamespace() + "/" + object.GetName()
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil
		}
		return fmt.Errorf("reading %s: %w", what, err)
	}
	return c.remove(ctx, object, what)
}
