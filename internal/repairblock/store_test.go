package repairblock_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/repairblock"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestNewStoreListsMissingFields(t *testing.T) {
	_, err := repairblock.NewStore(repairblock.Config{Restore: true})
	for _, field := range []string{"Client", "Namespace", "Check", "Schema", "Event", "Wrote", "Count", "Changed", "Logger"} {
		testkit.Fails(t, err, field+" is missing")
	}
}

// Each test has its own cluster, because a cluster has only one CRD of NodePools.
func TestStore(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	t.Run("detects_whether_Karpenter_is_installed", w.withoutKarpenter)
	t.Run("reports_nothing_without_blocks", w.silentWithoutBlocks)
	t.Run("applies_the_block_of_a_pool_and_stores_it", w.followsAndKeeps)
	t.Run("keeps_the_last_good_block_when_the_next_is_invalid", w.staysWithTheLastGood)
	t.Run("forgets_deleted_pools_and_their_names", w.forgetsPools)
	t.Run("stores_revisions_despite_failures", w.keepsInSpiteOfFaults)
	t.Run("keeps_revisions_when_the_CRD_is_deleted", w.keepsWithoutDefinition)
}

func TestStoreWithoutSchema(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	t.Run("keeps_the_last_good_block_through_pruning_and_restore", w.survivesLoss)
	t.Run("applies_a_block_that_was_only_hidden", w.followsTheHidden)
	t.Run("detects_a_block_lost_while_no_store_ran", w.detectsLossWhileStopped)
	t.Run("reads_again_before_it_accepts_a_removal", w.looksAfresh)
}

func TestStoreRestores(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	t.Run("without_fighting_another_writer", w.restores)
	t.Run("including_pruned_blocks", w.restoresPruned)
	t.Run("but_not_blocks_whose_revision_was_deleted", w.dropsByRevision)
}

func TestStoreWithoutPermission(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	t.Run("for_the_CRD", w.withoutDefinition)
	t.Run("for_revisions", w.withoutRevisions)
	t.Run("for_pools", w.withoutPools)
	t.Run("for_restores", w.withoutRestore)
}

// beginWithBlock starts with a store and a pool whose block is in force and stored.
func (w *fixture) beginWithBlock(t *testing.T, with ...func(*repairblock.Config)) *runningStore {
	t.Helper()
	w.begin(t)
	k := w.start(t, w.client, with...)
	w.create(t, "default", "5m")
	k.awaits(t, "default", "5m")
	w.awaitStamped(t)
	return k
}

// beginThroughProxy starts with a store whose requests can be made to fail.
func (w *fixture) beginThroughProxy(t *testing.T) (*testbed.Proxy, *runningStore) {
	t.Helper()
	w.begin(t)
	proxy := testkit.Value(w.Proxy()).Must(t)
	return proxy, w.start(t, w.connect(t, proxy.Config(w.AdminConfig())))
}

func (w *fixture) withoutKarpenter(t *testing.T) {
	w.namespace = "default"
	k := w.start(t, w.client)
	await(t, "it is known that there is none", func() (bool, string) {
		known, isThere, err := k.Listed()
		return known && !isThere && err == nil, ""
	})
	w.applyStock(t)
	w.create(t, "first", "")
	k.awaits(t, "first", "none")
	if known, isThere, err := k.Listed(); !known || !isThere || err != nil {
		t.Errorf("known %v, there %v: %v", known, isThere, err)
	}
	testkit.Must(t, w.client.Delete(t.Context(), newPool("first", "")))
	k.awaits(t, "first", "gone")
	k.tells(t, "first")
}

func (w *fixture) silentWithoutBlocks(t *testing.T) {
	w.begin(t)
	w.create(t, "plain", "")
	w.applyStock(t)
	k := w.start(t, w.client, withRestore)
	k.awaits(t, "plain", "none")
	w.patchSchema(t)
	w.applyStock(t)
	w.prune(t, "plain")
	// When the next pool is visible, all earlier changes were processed.
	w.create(t, "next", "")
	k.awaits(t, "next", "none")
	k.tells(t, "plain")
	testkit.Check(t, !w.hasSchema(t), "a schema was put where none ever was")
	w.awaitCopies(t)
	k.counts(t, repairblock.Counts{})
	if n := k.logs("level=WARN") + k.logs("level=ERROR"); n > 0 {
		t.Errorf("there are %d complaints", n)
	}
}

func (w *fixture) followsAndKeeps(t *testing.T) {
	w.begin(t)
	k := w.start(t, w.client)
	w.create(t, "default", "5m")
	k.awaits(t, "default", "5m")
	w.awaitCopies(t, "default=5m")
	for _, next := range []string{"6m", "7m", "8m"} {
		w.write(t, "default", next)
		k.awaits(t, "default", next)
	}
	w.awaitCopies(t, "default=8m")
	k.counts(t, repairblock.Counts{InForce: 1})
	// The CRD changes and keeps the schema: nothing is lost, and a removal still counts.
	testkit.Must(t, w.client.Patch(t.Context(), w.stock.DeepCopy(), client.RawPatch(types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/versions/0/schema/openAPIV3Schema/description","value":"changed"}]`))))
	w.awaitStamped(t)
	w.remove(t, "default")
	k.awaits(t, "default", "none")
	w.awaitCopies(t)
	k.tells(t, "default", "accepted", "accepted", "accepted", "accepted")
	k.counts(t, repairblock.Counts{})
	// A block that is written again is applied again, also by a new leader.
	w.write(t, "default", "9m")
	k.awaits(t, "default", "9m")
	w.awaitCopies(t, "default=9m")
	k.stop()
	next := w.start(t, w.client)
	next.awaits(t, "default", "9m")
	next.tells(t, "default")
}

// awaitStamped waits until all revisions record the current version of the CRD.
func (w *fixture) awaitStamped(t *testing.T) {
	t.Helper()
	await(t, "the copies know the CRD", func() (bool, string) {
		crd := w.crd(t)
		version := string(crd.GetUID()) + "/" + strconv.FormatInt(crd.GetGeneration(), 10)
		var list appsv1.ControllerRevisionList
		testkit.Must(t, w.client.List(t.Context(), &list, client.InNamespace(w.namespace)))
		for _, r := range list.Items {
			if !strings.Contains(string(r.Data.Raw), version) {
				return false, string(r.Data.Raw)
			}
		}
		return len(list.Items) > 0, "no copies"
	})
}

func (w *fixture) staysWithTheLastGood(t *testing.T) {
	k := w.beginWithBlock(t)
	w.write(t, "default", bad)
	k.awaits(t, "default", "5m: the block cannot be followed: spec.repair.defaultTolerationDuration: 13m brings NodePool default bad luck; the last good block stays in force")
	k.tells(t, "default", "accepted", "refused")
	k.counts(t, repairblock.Counts{Refused: 1})
	w.awaitCopies(t, "default=5m")
	w.create(t, "second", bad)
	k.awaits(t, "second", "none: the block cannot be followed: ")
	k.stop()

	next := w.start(t, w.client)
	next.awaits(t, "default", "5m: the block cannot be followed: ")
	next.awaits(t, "second", "none: the block cannot be followed: ")
	next.tells(t, "default", "refused")
	w.write(t, "default", "6m")
	next.awaits(t, "default", "6m")
	next.tells(t, "default", "refused", "accepted")
	w.awaitCopies(t, "default=6m")

	// An unreadable block: another schema allows it.
	testkit.Must(t, w.client.Patch(t.Context(), w.stock.DeepCopy(), client.RawPatch(types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/repair","value":{"x-kubernetes-preserve-unknown-fields":true}}]`))))
	await(t, "nonsense can be written", func() (bool, string) {
		err := w.client.Patch(t.Context(), newPool("default", ""), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"repair":"nonsense"}}`)))
		return err == nil, "it cannot"
	})
	next.awaits(t, "default", "6m: the block cannot be followed: spec.repair: ")
	// To remove the invalid block is to remove the block.
	w.awaitStamped(t)
	w.remove(t, "default")
	next.awaits(t, "default", "none")
	w.awaitCopies(t)
}

func (w *fixture) survivesLoss(t *testing.T) {
	k := w.beginWithBlock(t)
	w.create(t, "plain", "")
	begun := time.Now()
	w.applyStockUnawaited(t) // without a write to the pool
	k.awaits(t, "default", "5m lost: the schema of nodepools.karpenter.sh has lost spec.repair; the last good block stays in force")
	t.Logf("the loss was noticed after %v", time.Since(begun))
	w.awaitServed(t, false)
	k.awaits(t, "plain", "none")
	k.tells(t, "default", "accepted", "lost")
	word := k.lastWord("default")
	if !strings.Contains(word.Message, "to stop repairs: kubectl annotate nodepool default autohealer.resourcestack.com/do-not-repair=true.") ||
		!strings.Contains(word.Message, "otherwise until the schema is back: kubectl delete controllerrevisions -n "+w.namespace+" -l ") {
		t.Errorf("no Event says what to do until the schema is back: %s", word.Message)
	}
	k.tells(t, "plain")
	k.counts(t, repairblock.Counts{Lost: 1})
	testkit.Check(t, k.logs("schema of repair blocks lost") == 1, "the loss is not in the log once")

	restart := func(want string, told ...string) {
		t.Helper()
		k.stop()
		k = w.start(t, w.client)
		k.awaits(t, "default", want)
		k.tells(t, "default", told...)
		w.awaitCopies(t, "default=5m")
	}
	restart("5m lost: ", "lost")
	w.prune(t, "default")
	w.merge(t, "default", `{"spec":{"weight":7}}`)
	k.awaits(t, "default", "5m lost: ")
	restart("5m lost: ", "lost")
	w.patchSchema(t)
	k.awaits(t, "default", "5m: spec.repair is gone since the schema of nodepools.karpenter.sh has changed, and may have been pruned; the last good block stays in force")
	k.tells(t, "default", "lost", "vanished")
	k.counts(t, repairblock.Counts{Vanished: 1})
	restart("5m: spec.repair is gone since ", "vanished")
	if word := k.words[0]; !strings.Contains(word.Message, "kubectl delete controllerrevisions -n "+w.namespace+" -l autohealer.resourcestack.com/kept-repair-block=default") {
		t.Errorf("no Event says how to drop the block: %s", word.Message)
	}
	testkit.Require(t, w.onPool(t, "default") == "", "the block is on the pool: nothing was pruned")
	w.write(t, "default", "6m")
	k.awaits(t, "default", "6m")
	k.tells(t, "default", "vanished", "accepted")
	w.awaitCopies(t, "default=6m")
	w.awaitStamped(t)
	w.remove(t, "default")
	k.awaits(t, "default", "none")
	w.awaitCopies(t)
}

func (w *fixture) followsTheHidden(t *testing.T) {
	k := w.beginWithBlock(t)
	w.applyStock(t)
	k.awaits(t, "default", "5m lost: ")
	w.patchSchema(t)
	k.awaits(t, "default", "5m")
	w.awaitStamped(t)
	k.tells(t, "default", "accepted", "lost", "accepted")
	testkit.Check(t, w.onPool(t, "default") == "5m", "the block is not on the pool")
	w.remove(t, "default")
	k.awaits(t, "default", "none")
}

func (w *fixture) detectsLossWhileStopped(t *testing.T) {
	k := w.beginWithBlock(t)
	k.stop()
	w.applyStock(t)
	w.merge(t, "default", `{"spec":{"weight":7}}`)
	w.patchSchema(t)
	k = w.start(t, w.client)
	k.awaits(t, "default", "5m: spec.repair is gone since ")
	k.tells(t, "default", "vanished")
	k.stop()
	// To disable the block on the pool is a decision, too.
	w.merge(t, "default", `{"spec":{"repair":{"enabled":false}}}`)
	k = w.start(t, w.client)
	k.awaits(t, "default", "")
	k.tells(t, "default", "accepted")
	// A block that was removed while no store ran is removed.
	w.awaitStamped(t)
	k.stop()
	w.remove(t, "default")
	k = w.start(t, w.client)
	k.awaits(t, "default", "none")
	w.awaitCopies(t)
}

func (w *fixture) dropsByRevision(t *testing.T) {
	w.begin(t)
	k := w.start(t, w.client)
	drop := func() {
		t.Helper()
		testkit.Must(t, w.client.DeleteAllOf(t.Context(), &appsv1.ControllerRevision{}, client.InNamespace(w.namespace), client.MatchingLabels{repairblock.RevisionLabel: "default"}))
	}
	w.create(t, "default", "5m")
	w.awaitCopies(t, "default=5m")
	drop() // the store writes the revision of a visible block again
	await(t, "the revision is written again", func() (bool, string) { return k.logs("dropped") == 0 && len(w.revisions(t)) == 1, "" })
	k.awaits(t, "default", "5m")
	w.awaitStamped(t)
	w.applyStock(t)
	w.prune(t, "default")
	k.awaits(t, "default", "5m lost: ")
	await(t, "the block is not seen any more", func() (isGone bool, _ string) {
		k.do(func() { isGone = k.pools["default"].Spec.Repair == nil })
		return isGone, "it is"
	})
	drop()
	k.awaits(t, "default", "none")
	w.patchSchema(t)
	w.create(t, "next", "")
	k.awaits(t, "next", "none")
	k.awaits(t, "default", "none")
	w.awaitCopies(t)
	k.tells(t, "default", "accepted", "lost", "accepted")
	// The same holds for a vanished block.
	w.write(t, "default", "7m")
	w.awaitStamped(t)
	w.applyStock(t)
	w.prune(t, "default")
	w.patchSchema(t)
	k.awaits(t, "default", "7m: spec.repair is gone since ")
	drop()
	k.awaits(t, "default", "none")
	w.awaitCopies(t)
}

func withRestore(c *repairblock.Config) { c.Restore = true }

func (w *fixture) restores(t *testing.T) {
	k := w.beginWithBlock(t, withRestore)
	w.applyStockUnawaited(t)
	await(t, "the schema is put back", func() (bool, string) { return w.hasSchema(t), "it is not" })
	w.awaitServed(t, true)
	w.awaitStamped(t)
	k.awaits(t, "default", "5m")
	if got := strings.Join(k.told("default"), " "); got != "accepted lost restored accepted" {
		t.Errorf("told: %s", got)
	}
	if n := w.writesTo(k, "customresourcedefinitions"); n != 1 {
		t.Errorf("the CRD was written %d times", n)
	}
	// Another writer removes it again: the next restore waits.
	w.applyStock(t)
	k.awaits(t, "default", "5m lost: ")
	for range 5 {
		w.prune(t, "default")
		w.create(t, "extra", "")
		k.awaits(t, "extra", "none")
		testkit.Must(t, w.client.Delete(t.Context(), newPool("extra", "")))
		k.awaits(t, "extra", "gone")
	}
	if n := w.writesTo(k, "customresourcedefinitions"); n != 1 || w.hasSchema(t) {
		t.Errorf("the CRD was written %d times: that is a fight", n)
	}
	k.awaits(t, "default", "5m lost: ")
}

func (w *fixture) writesTo(k *runningStore, resource string) (n int) {
	k.do(func() {
		for what, times := range k.writes {
			if strings.HasPrefix(what, resource+" ") {
				n += times
			}
		}
	})
	return n
}

// applyStockUnawaited does not wait, because another writer may undo it at once.
func (w *fixture) applyStockUnawaited(t *testing.T) {
	t.Helper()
	crd := w.crd(t)
	crd.Object["spec"] = w.stock.DeepCopy().Object["spec"]
	testkit.Must(t, w.client.Update(t.Context(), crd))
}

func (w *fixture) restoresPruned(t *testing.T) {
	k := w.beginWithBlock(t)
	w.create(t, "second", "6m")
	w.awaitCopies(t, "default=5m", "second=6m")
	w.awaitStamped(t)
	w.applyStock(t)
	w.prune(t, "default")
	k.awaits(t, "default", "5m lost: ")
	k.stop()
	k = w.start(t, w.client, withRestore)
	k.awaits(t, "default", "5m")
	k.awaits(t, "second", "6m")
	testkit.Check(t, w.onPool(t, "default") == "5m" && w.onPool(t, "second") == "6m", "not all blocks are on their pools")
	if n := w.writesTo(k, "nodepools"); n != 1 {
		t.Errorf("pools were written %d times", n)
	}
	k.tells(t, "default", "lost", "restored", "vanished", "restored", "accepted")
	// A removal after that is intended.
	w.awaitStamped(t)
	w.remove(t, "default")
	k.awaits(t, "default", "none")
	w.awaitCopies(t, "second=6m")
}

func (w *fixture) looksAfresh(t *testing.T) {
	proxy, k := w.beginThroughProxy(t)
	w.create(t, "default", "5m")
	k.awaits(t, "default", "5m")
	w.awaitStamped(t)
	// From now on the store receives no news of the CRD.
	deaf := proxy.Inject(testbed.On("list", "customresourcedefinitions"), testbed.InternalError(), 0)
	proxy.Inject(testbed.On("watch", "customresourcedefinitions"), testbed.InternalError(), 0)
	proxy.DropWatches()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	testkit.Must(t, deaf.Wait(ctx, 1))
	w.applyStock(t)
	w.merge(t, "default", `{"spec":{"weight":7}}`)
	k.awaits(t, "default", "5m lost: ")
	w.awaitCopies(t, "default=5m")
}

// limited returns a client with only these permissions.
func (w *fixture) limited(t *testing.T, rules ...rbacv1.PolicyRule) client.WithWatch {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Rules: rules}
	testkit.Must(t, w.client.Create(t.Context(), role))
	testkit.Must(t, w.client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: w.namespace},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: w.namespace, Name: "controller"}},
	}))
	config := testkit.Value(w.ServiceAccountConfig(t.Context(), w.namespace, "controller")).Must(t)
	return w.connect(t, config)
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

var (
	readPools  = rule("karpenter.sh", "nodepools", "get", "list", "watch")
	writePools = rule("karpenter.sh", "nodepools", "patch")
	readCopies = rule("apps", "controllerrevisions", "list", "watch", "create", "delete")
	readCRD    = ruleForCRD("get", "list", "watch")
	writeCRD   = ruleForCRD("patch")
)

func ruleForCRD(verbs ...string) rbacv1.PolicyRule {
	is := rule("apiextensions.k8s.io", "customresourcedefinitions", verbs...)
	is.ResourceNames = []string{"nodepools.karpenter.sh"}
	return is
}

// grant gives a limited client further permissions.
func (w *fixture) grant(t *testing.T, rules ...rbacv1.PolicyRule) {
	t.Helper()
	testkit.Must(t, w.client.Update(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Rules: rules}))
}

func (w *fixture) withoutDefinition(t *testing.T) {
	w.begin(t)
	c := w.limited(t, readPools, readCopies, writePools, writeCRD)
	k := w.start(t, c, withRestore)
	w.create(t, "default", "5m")
	k.awaits(t, "default", "5m")
	w.awaitCopies(t, "default=5m")
	w.remove(t, "default")
	k.awaits(t, "default", "5m: spec.repair is gone, and the controller cannot determine whether a user removed it or its schema was lost")
	k.tells(t, "default", "accepted", "vanished")
	k.counts(t, repairblock.Counts{Vanished: 1})
	if n := k.logs("permission missing"); n != 1 {
		t.Errorf("the right is missed %d times", n)
	}
	w.awaitCopies(t, "default=5m")
	k.stop()
	k = w.start(t, c)
	k.awaits(t, "default", "5m: spec.repair is gone, and the controller cannot determine whether ")
}

func (w *fixture) withoutRevisions(t *testing.T) {
	w.begin(t)
	c := w.limited(t, readPools, readCRD)
	k := w.start(t, c)
	w.create(t, "default", "5m")
	k.awaits(t, "default", "5m")
	k.counts(t, repairblock.Counts{NotSaved: 1})
	if n := k.logs("permission missing"); n != 1 {
		t.Errorf("the right is missed %d times", n)
	}
	w.awaitCopies(t)
	// The block stays in force in memory.
	w.applyStock(t)
	k.awaits(t, "default", "5m lost: ")
	w.patchSchema(t)
	k.awaits(t, "default", "5m")
	// Once the permission exists, the store writes the revision.
	w.grant(t, readPools, readCRD, readCopies)
	w.awaitCopies(t, "default=5m")
	k.counts(t, repairblock.Counts{InForce: 1})
}

func (w *fixture) withoutPools(t *testing.T) {
	w.begin(t)
	k := w.start(t, w.limited(t, readCRD, readCopies))
	await(t, "it is said", func() (bool, string) {
		known, _, err := k.Listed()
		return !known && err != nil && strings.Contains(err.Error(), "nodepools.karpenter.sh is forbidden"), ""
	})
	await(t, "it is logged", func() (bool, string) { return k.logs("permission missing") == 1, "" })
}

func (w *fixture) withoutRestore(t *testing.T) {
	w.begin(t)
	k := w.start(t, w.limited(t, readPools, readCRD, readCopies), withRestore)
	await(t, "it is logged before anything is lost", func() (bool, string) { return k.logs("permission missing") == 1, "" })
	w.create(t, "default", "5m")
	w.create(t, "second", "6m")
	w.awaitCopies(t, "default=5m", "second=6m")
	w.awaitStamped(t)
	w.applyStock(t)
	w.prune(t, "default")
	w.prune(t, "second")
	await(t, "it was tried twice", func() (bool, string) { return w.writesTo(k, "customresourcedefinitions") >= 2, "it was not" })
	k.awaits(t, "default", "5m lost: ")
	k.tells(t, "default", "accepted", "lost", "restored in trouble")
	k.tells(t, "second", "accepted", "lost", "restored in trouble")
	// With half of the permissions, half of the restore works.
	w.grant(t, readPools, readCRD, readCopies, writeCRD)
	k.awaits(t, "default", "5m: spec.repair is gone since ")
	await(t, "pools were tried", func() (bool, string) { return w.writesTo(k, "nodepools") >= 2, "they were not" })
	for _, pool := range []string{"default", "second"} {
		k.tells(t, pool, "accepted", "lost", "restored in trouble", "restored", "vanished", "restored in trouble")
		if last := k.lastWord(pool); !strings.Contains(last.Failure, `cannot patch resource "nodepools"`) || !strings.Contains(last.Failure, "deploy/extras/restore-rights.yaml gives the right") {
			t.Errorf("the way out is not told: %s", last.Failure)
		}
	}
	w.grant(t, readPools, readCRD, readCopies, writeCRD, writePools)
	k.awaits(t, "default", "5m")
	k.awaits(t, "second", "6m")
	testkit.Check(t, w.onPool(t, "default") == "5m" && w.onPool(t, "second") == "6m", "not all blocks are on their pools")
	if n := k.logs("permission missing"); n != 2 {
		t.Errorf("the rights are missed %d times, there are two", n)
	}
}

func (w *fixture) forgetsPools(t *testing.T) {
	proxy, k := w.beginThroughProxy(t)
	// The CRD has changed when the store reads it again.
	w.create(t, "third", "7m")
	w.awaitCopies(t, "third=7m")
	proxy.Partition()
	testkit.Must(t, w.client.Delete(t.Context(), newPool("third", "")))
	w.create(t, "third", "")
	proxy.Heal()
	k.awaits(t, "third", "none")
	w.awaitCopies(t)
	k.do(func() {
		if len(k.had) != 1 || k.had[k.pools["third"].UID] {
			t.Errorf("a block was in force for %v, and this one is %s", k.had, k.pools["third"].UID)
		}
	})
	testkit.Must(t, w.client.Delete(t.Context(), newPool("third", "")))

	w.create(t, "default", "5m")
	w.create(t, "second", "6m")
	w.awaitCopies(t, "default=5m", "second=6m")
	testkit.Must(t, w.client.Delete(t.Context(), newPool("second", "")))
	k.awaits(t, "second", "gone")
	w.awaitCopies(t, "default=5m")
	w.awaitStamped(t)
	k.stop()
	testkit.Must(t, w.client.Delete(t.Context(), newPool("default", "")))
	w.create(t, "default", "")
	w.applyStock(t)
	k = w.start(t, w.client)
	k.awaits(t, "default", "none")
	k.tells(t, "default")
	w.awaitCopies(t)
}

func (w *fixture) keepsInSpiteOfFaults(t *testing.T) {
	proxy, k := w.beginThroughProxy(t)
	w.create(t, "plain", "")
	k.awaits(t, "plain", "none")
	fails := proxy.Inject(testbed.On("create", "controllerrevisions"), testbed.InternalError(), 1)
	proxy.Inject(testbed.On("create", "controllerrevisions"), testbed.CutResponse(), 1)
	w.create(t, "default", "5m")
	k.awaits(t, "default", "5m")
	if fails.Hits() == 0 {
		k.counts(t, repairblock.Counts{NotSaved: 1})
	}
	w.awaitCopies(t, "default=5m")
	k.counts(t, repairblock.Counts{InForce: 1})
	proxy.Inject(testbed.On("delete", "controllerrevisions"), testbed.CutResponse(), 1)
	w.write(t, "default", "6m")
	w.awaitCopies(t, "default=6m")
	proxy.Partition()
	w.write(t, "default", "7m")
	proxy.Heal()
	k.awaits(t, "default", "7m")
	w.awaitCopies(t, "default=7m")
	k.tells(t, "default", "accepted", "accepted", "accepted")
}

func (w *fixture) keepsWithoutDefinition(t *testing.T) {
	w.begin(t)
	k := w.start(t, w.client)
	w.create(t, "default", "5m")
	w.awaitCopies(t, "default=5m")
	testkit.Must(t, w.client.Delete(t.Context(), w.stock.DeepCopy()))
	await(t, "nothing is there any more", func() (bool, string) {
		known, isThere, _ := k.Listed()
		return known && !isThere, ""
	})
	k.awaits(t, "default", "gone")
	w.awaitCopies(t, "default=5m")
	w.applyStock(t)
	w.create(t, "default", "") // another pool of the same name
	k.awaits(t, "default", "none")
	w.awaitCopies(t)
}
