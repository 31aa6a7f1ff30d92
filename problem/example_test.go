package problem_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/resourcestack/autohealer/problem"
)

// A daemon with one condition: it sets the condition after each look, and the client does the rest.
// examples/disk-watch is a complete daemon.
func Example() {
	client, err := problem.New(problem.Config{Source: "disk-watch"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var reporting sync.WaitGroup
	reporting.Go(func() { client.Run(ctx) })
	defer reporting.Wait() // when ctx has ended, Run sends what is left

	for look := time.Tick(10 * time.Second); ctx.Err() == nil; {
		condition := problem.Condition{Type: "DiskBadBlock", Reason: "NoBadBlocks"}
		if n := badSectors(); n >= 100 { // the limit in the catalog
			condition.Status, condition.Reason = problem.True, "BadBlocksFound"
			condition.Message = fmt.Sprintf("%d bad sectors on /dev/sda", n)
		}
		if err := client.SetCondition(condition); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		select {
		case <-look:
		case <-ctx.Done():
		}
	}
}

func badSectors() int { return 0 }

// A temporary problem is an event, not a condition.
func ExampleClient_Report() {
	client, err := problem.New(problem.Config{Source: "disk-watch"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(client.Report(problem.Event{Reason: "SlowDisk", Message: "a read of /dev/sda took 12s"}))
	fmt.Println(client.Report(problem.Event{Reason: "slow disk"}))
	// Output:
	// <nil>
	// the reason "slow disk": write CamelCase like BadBlocksFound, 64 letters and digits at most
}

// Without this package, a status is this JSON.
func ExampleStatus() {
	noon := time.Date(2026, time.November, 15, 12, 0, 0, 0, time.UTC)
	text, err := json.MarshalIndent(problem.Status{
		Source:     "disk-watch",
		Events:     []problem.Event{{Severity: problem.Warn, Timestamp: noon, Reason: "SlowDisk", Message: "a read of /dev/sda took 12s"}},
		Conditions: []problem.Condition{{Type: "DiskBadBlock", Status: problem.True, Transition: noon, Reason: "BadBlocksFound", Message: "128 bad sectors on /dev/sda"}},
	}, "", "  ")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(text))
	// Output:
	// {
	//   "source": "disk-watch",
	//   "events": [
	//     {
	//       "severity": "warn",
	//       "timestamp": "2026-11-15T12:00:00Z",
	//       "reason": "SlowDisk",
	//       "message": "a read of /dev/sda took 12s"
	//     }
	//   ],
	//   "conditions": [
	//     {
	//       "type": "DiskBadBlock",
	//       "status": true,
	//       "transition": "2026-11-15T12:00:00Z",
	//       "reason": "BadBlocksFound",
	//       "message": "128 bad sectors on /dev/sda"
	//     }
	//   ]
	// }
}
