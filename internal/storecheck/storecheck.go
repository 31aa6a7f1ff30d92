package storecheck

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

const (
	// interval is the time between two reads of the version.
	interval = 5 * time.Second
	// retryInterval is the time after a failed read. It is short, because a restored store
	// must not reach the old version before the next read.
	retryInterval = time.Second
	// readTimeout is the timeout of a read.
	readTimeout = 10 * time.Second
)

// ErrRestored means that the store was restored.
var ErrRestored = errors.New("the store of the API server was restored from a backup")

// Version reads the current resourceVersion of the store, bypassing caches.
type Version func(ctx context.Context) (string, error)

// Run reads the version until ctx ends or the version goes backwards. In the second case it
// returns [ErrRestored]. seen returns the newest version in the watches of the process, or an
// empty string. It counts as well.
func Run(ctx context.Context, version Version, seen func() string, log *slog.Logger) error {
	newest, incomparable := "", false
	for {
		if before := seen(); isNewer(before, newest) { // call seen first: a later value may be newer than the read
			newest = before
		}
		now, err := readVersion(ctx, version)
		wait := interval
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the caller ended ctx
		}
		switch {
		case err != nil:
			wait = retryInterval // other users of the API server log its failures
		case newest == "":
			newest = now
		default:
			order, err := resourceversion.CompareResourceVersion(now, newest)
			switch {
			case err != nil && !incomparable:
				incomparable = true
				log.Warn("resource versions cannot be compared, so a restored store is not detected: restart the controller after a restore", "version", now, "before", newest, "err", err)
			case err == nil && order < 0:
				return fmt.Errorf("%w: its resource version was %s and is %s; the controller restarts and lists everything", ErrRestored, newest, now)
			}
			newest = now
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// isNewer reports whether a version is known to be newer than another. Any version is newer
// than an empty one.
func isNewer(version, than string) bool {
	if version == "" || than == "" {
		return version != ""
	}
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order > 0
}

func readVersion(ctx context.Context, version Version) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return version(ctx)
}
