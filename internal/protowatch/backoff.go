package protowatch

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Backoff returns the waits between attempts to start a watch. All watches of the controller
// use it. The waits are short enough not to miss a storm, and long enough not to overload an
// API server that has just started.
func Backoff() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 10 * time.Second}
}
