package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// introduce shows what the controller was told, and how to read what follows.
func (s *stage) introduce(ctx context.Context) error {
	table, err := s.Kubectl(ctx, "get", "conditionsets")
	if err != nil {
		return err
	}
	checks, err := s.Kubectl(ctx, "get", "nodehealthchecks")
	if err != nil {
		return err
	}
	s.tell.print("\n" + table + "\n" + checks + `
What follows is what anybody sees who watches this cluster: taints, pods, remediations, the
status of the policies, and why, in the words of Autohealer's Events. Times count from the last
thing that was done.`)
	if s.karpenter != nil {
		s.tell.print("The nodes of Karpenter are named after their NodeClaims: their own names are longer.")
	}
	return nil
}

// stay lets everything run until ctx ends, and tells what comes of what others do.
func (s *stage) stay(ctx context.Context) {
	s.tell.letGo()
	s.tell.print(fmt.Sprintf(`
The cluster stays until Ctrl-C. In another terminal:

  export KUBECONFIG=%s
  export PATH=%s:$PATH

  kubectl get conditionsets -o wide
  kubectl get pods -o wide
  kubectl describe node %[3]s

  # Let a node be sick, and with "False" well again. What comes of it is told here.
  kubectl patch node %[3]s --subresource=status --type=strategic -p \
    '{"status":{"conditions":[{"type":"KernelDeadlock","status":"True","reason":"DockerHung",
      "lastTransitionTime":"'$(date -u +%%FT%%TZ)'"}]}}'

  # Let the kernel of %[6]s say that docker hangs, and that it goes on. Its agent finds it:
  # the node is sick, and well again.
  %[7]s
  %[8]s

  # Let %[9]s find a bad block of a disk of that node, and none.
  %[10]s
  %[11]s

  # Let fewer nodes be emptied, or only look on.
  kubectl patch conditionset %[4]s --type=merge -p '{"spec":{"maxUnhealthy":1}}'
  kubectl patch conditionset %[4]s --type=merge -p '{"spec":{"dryRun":true}}'

  # Let a kubelet die. The remediator is at work.
  kubectl label node %[3]s %[5]s=true
  kubectl get nhc
  kubectl get exampleremediations
`, s.Kubeconfig(), programs(), worker(2), kernelSet, testbed.SilentLabel,
		probed, s.kernelLog.command(hung), s.kernelLog.command(goesOn),
		diskWatchSource, s.badBlocks.found(), s.badBlocks.mended()))
	if s.karpenter != nil {
		s.tell.print(fmt.Sprintf(`  # Let a node of a NodePool be sick. After 6 s its machine is replaced.
  %s

  kubectl get nodepools,nodeclaims
  kubectl get repairpolicies -o wide
  kubectl events --for nodepool/%[2]s

  # Let nothing be repaired there.
  kubectl patch nodepool %[2]s --type=merge -p '{"spec":{"repair":{"enabled":false}}}'
`, shopSickens(), shopPool))
	}
	var all sync.WaitGroup
	for _, g := range s.guests() {
		all.Go(func() { s.keep(ctx, g) })
	}
	all.Wait()
}

// guest is a program that runs beside the cluster.
type guest struct {
	name string
	*testbed.Part
}

// guests are those that have been started.
func (s *stage) guests() (all []guest) {
	if s.controller != nil {
		all = append(all, guest{"controller", s.controller.Part})
	}
	if s.agent != nil {
		all = append(all, guest{"agent", s.agent.Part})
	}
	if s.diskWatch != nil {
		all = append(all, guest{diskWatchSource, s.diskWatch})
	}
	if s.karpenter != nil {
		all = append(all, guest{"Karpenter", s.karpenter.Part})
	}
	return all
}

// keep has a program run until ctx ends.
func (s *stage) keep(ctx context.Context, g guest) {
	for ctx.Err() == nil {
		g.Expect() // its end is told here, and is no failure of the demo
		select {
		case <-ctx.Done():
		case <-g.Ended():
			s.revive(ctx, g)
		}
	}
}

// revive starts a program again when it has ended, as its Deployment or DaemonSet would.
func (s *stage) revive(ctx context.Context, g guest) {
	log, _ := g.Log()
	lines := strings.Split(strings.TrimSpace(log), "\n")
	s.tell.print("The " + g.name + " has ended, and is started again. Its last words: " + lines[len(lines)-1])
	if err := g.Restart(ctx); err != nil && ctx.Err() == nil {
		s.tell.print("That did not work, and is tried again: " + err.Error())
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// programs is where kubectl is.
func programs() string {
	if folder := os.Getenv("KUBEBUILDER_ASSETS"); folder != "" {
		return folder
	}
	folder, err := filepath.Abs(filepath.Join("bin", "testbed"))
	if err != nil {
		return "bin/testbed"
	}
	return folder
}

// lastWords are the ends of the programs' logs, for whoever has to find out why a
// step has not come true. There is nothing to find out about an interruption.
func (s *stage) lastWords(ctx context.Context) string {
	if ctx.Err() != nil || s == nil {
		return ""
	}
	var words strings.Builder
	for _, g := range s.guests() {
		words.WriteString(g.lastLines())
	}
	return words.String()
}

func (g guest) lastLines() string {
	log, err := g.Log()
	if err != nil {
		return "\n(the " + g.name + "'s log cannot be read: " + err.Error() + ")"
	}
	const most = 20
	lines := strings.Split(strings.TrimSpace(log), "\n")
	return "\nthe " + g.name + "'s last words:\n\t" + strings.Join(lines[max(0, len(lines)-most):], "\n\t")
}
