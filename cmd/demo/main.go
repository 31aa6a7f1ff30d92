// Command demo shows Autohealer at work on a whole cluster that runs on this
// machine alone: a real control plane, nodes in three zones whose kubelets kwok
// plays, workloads that are really evicted and scheduled anew, and the programs
// of the controller and of one agent, each under its own rights, and of a daemon that
// reports to that agent. With a real Karpenter beside them it has a story of its own.
//
// It promises that every line is what anybody sees who watches the API server,
// and to leave nothing behind: no process, no file. It refuses to look inside
// the programs, and to go on when a step has not come true.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/resourcestack/autohealer/internal/install"
)

// readingTime is left to a person before each scene.
const readingTime = 4 * time.Second

func main() {
	d := demo{story: (*stage).story}
	flag.BoolVar(&d.once, "once", false, "play the story without pauses, check every step and end")
	flag.StringVar(&d.controller, "controller", "", "`program` of the controller; it is built if none is given")
	flag.StringVar(&d.agent, "agent", "", "`program` of the agent; it is built if none is given")
	flag.StringVar(&d.diskWatch, "disk-watch", "", "`program` of the daemon that reports to the agent; it is built if none is given")
	flag.BoolVar(&d.kmsg, "kmsg", false, "let the agent read the log of this machine's kernel, and write there; needs root")
	flag.BoolVar(&d.karpenter, "karpenter", false, "add a real Karpenter, and play the story of its pools; make testbed-karpenter builds it")
	flag.Parse()
	if d.karpenter {
		d.story = (*stage).poolStory
	}
	if !d.once {
		d.pause = readingTime
	}
	for _, program := range []*string{&d.controller, &d.agent, &d.diskWatch} {
		if *program == "" {
			continue
		}
		path, err := filepath.Abs(*program) // it will run in a folder of the cluster's
		if err != nil {
			fmt.Fprintf(os.Stderr, "demo: finding %s: %v\n", *program, err)
			os.Exit(1)
		}
		*program = path
	}
	// The libraries' logs would fall into the story: they complain of watches
	// that break when the cluster goes down, as it should.
	klog.SetLogger(logr.Discard())
	log.SetLogger(logr.Discard())

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, func() {
		fmt.Println("\ndemo: cleaning up")
		stop() // who presses Ctrl-C once more does not want to wait
	})
	err := d.run(ctx, os.Stdout)
	install.Clean()
	switch {
	case err == nil:
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "demo: interrupted before the end of the story")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}
