// Command demo shows Autohealer on a whole cluster on this machine: a real control plane,
// nodes in three zones whose kubelets kwok simulates, and workloads that are evicted and
// rescheduled. The controller, one agent and a daemon that reports to the agent run as
// separate programs with their own rights. With -karpenter the demo adds a real Karpenter
// and shows node pools instead.
//
// With -cluster=current the demo starts nothing. It installs the chart, in mode Observe, into
// the cluster of the current kubeconfig, prints what Autohealer sees, and removes the release.
//
// Every printed line is visible to any client that watches the API server. The demo checks
// every step, stops at the first step that fails, and leaves no process and no file behind.
// It does not look inside the programs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
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

// stepPause is the time to read a step before the next one starts.
const stepPause = 4 * time.Second

func main() {
	d := demo{steps: (*demoCluster).steps}
	flag.BoolVar(&d.once, "once", false, "run all steps without pauses, check each one, and exit")
	flag.StringVar(&d.controller, "controller", "", "`path` of the controller; built if empty")
	flag.StringVar(&d.agent, "agent", "", "`path` of the agent; built if empty")
	flag.StringVar(&d.diskWatch, "disk-watch", "", "`path` of the daemon that reports to the agent; built if empty")
	flag.BoolVar(&d.kmsg, "kmsg", false, "write to the kernel log of this machine and have the agent read it; needs root")
	flag.BoolVar(&d.karpenter, "karpenter", false, "add a real Karpenter and show its node pools; make testbed-karpenter builds it")
	r := inCluster{root: ".", patience: time.Minute}
	cluster := flag.String("cluster", "", "`current` installs Autohealer, in mode Observe, into the cluster of the current kubeconfig, and prints what it sees")
	flag.BoolVar(&r.keep, "keep", false, "with -cluster: leave Autohealer installed")
	flag.BoolVar(&r.defaults, "defaults", false, "with -cluster: apply the default sets")
	flag.StringVar(&r.registry, "registry", "", "with -cluster: `registry/path` of the images")
	flag.StringVar(&r.tag, "tag", "", "with -cluster: `tag` of the images")
	flag.StringVar(&r.preset, "preset", "", "with -cluster: `preset` of the chart")
	flag.StringVar(&r.values, "values", "", "with -cluster: `file` with values of the chart")
	flag.Parse()
	if d.karpenter {
		d.steps = (*demoCluster).poolSteps
	}
	if !d.once {
		d.pause = stepPause
	}
	for _, program := range []*string{&d.controller, &d.agent, &d.diskWatch} {
		if *program == "" {
			continue
		}
		path, err := filepath.Abs(*program) // the program runs in another directory
		if err != nil {
			fmt.Fprintf(os.Stderr, "demo: finding %s: %v\n", *program, err)
			os.Exit(1)
		}
		*program = path
	}
	// Libraries log broken watches when the cluster stops. These logs would disturb the output.
	klog.SetLogger(logr.Discard())
	log.SetLogger(logr.Discard())

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, func() {
		fmt.Println("\ndemo: cleaning up")
		stop() // a second Ctrl-C exits at once
	})
	run := d.run
	if *cluster != "" {
		r.once, r.pause = d.once, d.pause
		run = func(ctx context.Context, out io.Writer) error { return r.start(ctx, out, *cluster) }
	}
	err := run(ctx, os.Stdout)
	install.Clean()
	switch {
	case err == nil:
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "demo: interrupted before the last step")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}
