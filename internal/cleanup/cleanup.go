package cleanup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pageSize is how many objects a list request returns.
const pageSize = 500

// ErrLeaderActive says that a controller is running.
var ErrLeaderActive = errors.New("a controller is at work")

// Config configures Run.
type Config struct {
	// Client must not read from a cache.
	Client client.Client
	// Namespace is the namespace of the controller, and AgentNamespace that of the agents'
	// Leases.
	Namespace, AgentNamespace string
	// LeaseName is the name of the leader election Lease.
	LeaseName string
	// Wait is how long a controller may renew its Lease, because it is being stopped. Then the
	// Lease has to expire.
	Wait time.Duration
	// DryRun prints what would be removed, and removes nothing.
	DryRun bool
	// Out receives a line for everything that was removed or left.
	Out io.Writer
}

// Result counts the objects.
type Result struct {
	// Removed is how many objects were removed, or would be.
	Removed int
	// Left is how many objects may be Autohealer's without proof.
	Left int
}

// Run cleans up. If one kind of object fails, it continues with the others.
func Run(ctx context.Context, cfg Config) (Result, error) {
	c := &cleaner{Config: cfg}
	if err := c.awaitNoLeader(ctx); err != nil {
		return Result{}, err
	}
	err := errors.Join(c.nodes(ctx), c.nodeClaims(ctx), c.agentLeases(ctx), c.nodeLeases(ctx), c.revisions(ctx), c.mirrors(ctx), c.remediations(ctx), c.ledger(ctx))
	if err == nil {
		err = c.leaderLease(ctx) // last, because it shows that something is left to do
	}
	return c.result, err
}

type cleaner struct {
	Config
	result Result
}

// awaitNoLeader waits until no controller holds the leader election Lease. It fails if a
// controller renews the Lease after Wait.
func (c *cleaner) awaitNoLeader(ctx context.Context) error {
	end := time.Now().Add(c.Wait)
	var renewed, seen time.Time // the last renewal, and when it was first seen here
	for {
		lease := &coordinationv1.Lease{}
		if err := c.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.LeaseName}, lease); err != nil {
			return client.IgnoreNotFound(err)
		}
		s, now := lease.Spec, time.Now()
		if s.HolderIdentity == nil || *s.HolderIdentity == "" || s.RenewTime == nil || s.LeaseDurationSeconds == nil {
			return nil
		}
		// A leader renews its Lease more often. The clock of its machine may differ from the clock
		// here, so the Lease counts for twice its duration if only the clocks show its age.
		duration := time.Duration(*s.LeaseDurationSeconds) * time.Second
		isNew := !s.RenewTime.Time.Equal(renewed)
		if !isNew && now.Sub(seen) > duration || now.After(s.RenewTime.Add(2*duration)) {
			return nil
		}
		if isNew {
			switch {
			case renewed.IsZero():
				fmt.Fprintf(c.Out, "waiting until %s no longer holds Lease %s/%s\n", *s.HolderIdentity, c.Namespace, c.LeaseName)
			case now.After(end):
				return fmt.Errorf("%w: %s holds Lease %s/%s and would put everything back; stop it (kubectl -n %s scale deployment %s --replicas=0) and run this again",
					ErrLeaderActive, *s.HolderIdentity, c.Namespace, c.LeaseName, c.Namespace, c.LeaseName)
			}
			renewed, seen = s.RenewTime.Time, now
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// removed reports that something was removed.
func (c *cleaner) removed(format string, args ...any) {
	c.result.Removed++
	did := "removed"
	if c.DryRun {
		did = "would remove"
	}
	fmt.Fprintf(c.Out, "%s %s\n", did, fmt.Sprintf(format, args...))
}

// unprovenObject is an object that may be Autohealer's: why that is uncertain, and how to remove it.
type unprovenObject struct{ what, why, command string }

func (c *cleaner) left(d unprovenObject) {
	c.result.Left++
	fmt.Fprintf(c.Out, "left %s: %s; if it is Autohealer's: %s\n", d.what, d.why, d.command)
}

// each lists all objects page by page. A kind that is not installed has none.
func (c *cleaner) each(ctx context.Context, list client.ObjectList, do func() error, options ...client.ListOption) error {
	next := ""
	for {
		page := append([]client.ListOption{client.Limit(pageSize), client.Continue(next)}, options...)
		if err := c.Client.List(ctx, list, page...); err != nil {
			if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("listing %T: %w", list, err)
		}
		if err := do(); err != nil {
			return err
		}
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}

// remove deletes this version of an object.
func (c *cleaner) remove(ctx context.Context, object client.Object, what string) error {
	if !c.DryRun {
		uid, version := object.GetUID(), object.GetResourceVersion()
		err := c.Client.Delete(ctx, object, client.Preconditions{UID: &uid, ResourceVersion: &version})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting %s: %w", what, err)
		}
	}
	c.removed("%s", what)
	return nil
}

// retryOnConflict retries with the newest version of an object after a conflict.
func retryOnConflict(do func() error) error { return retry.RetryOnConflict(retry.DefaultBackoff, do) }
