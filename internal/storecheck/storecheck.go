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
	// every is how long to wait between two looks at the version.
	every = 5 * time.Second
	// soon is how long to wait after a look that has failed: the API server may come back
	// with a restored store, and must not reach the old version unnoticed.
	soon = time.Second
	// patience is how long a look may take.
	patience = 10 * time.Second
)

// ErrRestored says that the store was restored.
var ErrRestored = errors.New("the store of the API server was restored from a backup")

// Version reads the resource version of the store as it is now, past all caches that may
// be behind.
type Version func(ctx context.Context) (string, error)

// Run looks at the version until ctx ends, or until the version goes backwards: then the
// error is [ErrRestored]. What watches of the process have seen between two looks counts
// as well; it is empty while they have seen nothing.
func Run(ctx context.Context, version Version, seen func() string, log *slog.Logger) error {
	newest, incomparable := "", false
	for {
		if before := seen(); isNewer(before, newest) { // read first: what comes later may be newer than the answer
			newest = before
		}
		now, err := look(ctx, version)
		wait := every
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end that was asked for
		}
		switch {
		case err != nil:
			wait = soon // those who work with the API server tell of it
		case newest == "":
			newest = now
		default:
			order, err := resourceversion.CompareResourceVersion(now, newest)
			switch {
			case err != nil && !incomparable:
				incomparable = true
				log.Warn("resource versions cannot be compared, so a restored store will not be noticed: restart the controller after a restore", "version", now, "before", newest, "err", err)
			case err == nil && order < 0:
				return fmt.Errorf("%w: its resource version was %s and is %s; the controller starts again and lists everything", ErrRestored, newest, now)
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

// isNewer says whether a version is known to be newer than another, or the first one.
func isNewer(version, than string) bool {
	if version == "" || than == "" {
		return version != ""
	}
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order > 0
}

func look(ctx context.Context, version Version) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return version(ctx)
}
