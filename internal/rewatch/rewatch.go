// Package rewatch says how long to wait before a watch that cannot be had is asked
// for again. It promises that everybody who watches waits alike: short enough for a
// storm not to be missed, and long enough for an API server that has just come up not
// to be run over. It refuses to watch anything itself.
package rewatch

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Backoff returns the waits of one watch.
func Backoff() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 10 * time.Second}
}
