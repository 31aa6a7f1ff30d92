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

// introduce prints the policies and explains the output of the steps.
func (s *demoCluster) introduce(ctx context.Context) error {
	table, err := s.Kubectl(ctx, "get", "conditionsets")
	if err != nil {
		return err
	}
	checks, err := s.Kubectl(ctx, "get", "nodehealthchecks")
	if err != nil {
		return err
	}
	s.printer.print("\n" + table + "\n" + checks + `
The lines below are visible to any client that watches this cluster: taints, pods, remediations,
the status of the policies, and the reasons in Autohealer's Events. Times count from the last
action of the demo.`)
	if s.karpenter != nil {
		s.printer.print("Nodes of Karpenter are printed with the names of their NodeClaims, which are shorter.")
	}
	return nil
}

// interact keeps the cluster until ctx ends, and prints the effects of the user's actions.
func (s *demoCluster) interact(ctx context.Context) {
	s.printer.startInteractive()
	s.printer.print(fmt.Sprintf(`
The cluster stays until Ctrl-C. In another terminal:

  export KUBECONFIG=%s
  export PATH=%s:$PATH

  kubectl get conditionsets -o wide
  kubectl get pods -o wide
  kubectl describe node %[3]s

  # Make a node unhealthy, and with "False" healthy again. The effects are printed here.
  kubectl patch node %[3]s --subresource=status --type=strategic -p \
    '{"status":{"conditions":[{"type":"KernelDeadlock","status":"True","reason":"DockerHung",
      "lastTransitionTime":"'$(date -u +%%FT%%TZ)'"}]}}'

  # Write that docker hangs, and that it goes on, into the kernel log of %[6]s. The agent
  # makes the node unhealthy, and healthy again.
  %[7]s
  %[8]s

  # Give %[9]s a bad block on a disk of that node, and remove it.
  %[10]s
  %[11]s

  # Lower the bound, or switch the set to dry run.
  kubectl patch conditionset %[4]s --type=merge -p '{"spec":{"maxUnhealthy":1}}'
  kubectl patch conditionset %[4]s --type=merge -p '{"spec":{"dryRun":true}}'

  # Stop a kubelet. The remediator restarts it.
  kubectl label node %[3]s %[5]s=true
  kubectl get nhc
  kubectl get exampleremediations
`, s.Kubeconfig(), binDir(), worker(2), kernelSet, testbed.SilentLabel,
		agentNode, s.kernelLog.command(hangLine), s.kernelLog.command(resumeLine),
		diskWatchSource, s.badBlocks.addCommand(), s.badBlocks.clearCommand()))
	if s.karpenter != nil {
		s.printer.print(fmt.Sprintf(`  # Make a node of a NodePool unhealthy. After 6 s it is replaced.
  %s

  kubectl get nodepools,nodeclaims
  kubectl get repairpolicies -o wide
  kubectl events --for nodepool/%[2]s

  # Disable the repair of this NodePool.
  kubectl patch nodepool %[2]s --type=merge -p '{"spec":{"repair":{"enabled":false}}}'
`, breakShopNode(), shopPool))
	}
	var all sync.WaitGroup
	for _, p := range s.programs() {
		all.Go(func() { s.supervise(ctx, p) })
	}
	all.Wait()
}

// program is a program that runs beside the cluster.
type program struct {
	name string
	*testbed.Part
}

// programs returns the programs that were started.
func (s *demoCluster) programs() (all []program) {
	if s.controller != nil {
		all = append(all, program{"controller", s.controller.Part})
	}
	if s.agent != nil {
		all = append(all, program{"agent", s.agent.Part})
	}
	if s.diskWatch != nil {
		all = append(all, program{diskWatchSource, s.diskWatch})
	}
	if s.karpenter != nil {
		all = append(all, program{"Karpenter", s.karpenter.Part})
	}
	return all
}

// supervise restarts a program until ctx ends.
func (s *demoCluster) supervise(ctx context.Context, p program) {
	for ctx.Err() == nil {
		p.Expect() // the end of the program is not a failure of the demo
		select {
		case <-ctx.Done():
		case <-p.Ended():
			s.restart(ctx, p)
		}
	}
}

// restart starts an ended program again, as its Deployment or DaemonSet would.
func (s *demoCluster) restart(ctx context.Context, p program) {
	log, _ := p.Log()
	lines := strings.Split(strings.TrimSpace(log), "\n")
	s.printer.print("The " + p.name + " exited and is restarted. Its last log line: " + lines[len(lines)-1])
	if err := p.Restart(ctx); err != nil && ctx.Err() == nil {
		s.printer.print("The restart failed and is retried: " + err.Error())
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// binDir returns the directory of kubectl.
func binDir() string {
	if folder := os.Getenv("KUBEBUILDER_ASSETS"); folder != "" {
		return folder
	}
	folder, err := filepath.Abs(filepath.Join("bin", "testbed"))
	if err != nil {
		return "bin/testbed"
	}
	return folder
}

// lastLogs returns the end of each program's log, to explain a failed step. After an
// interrupt it returns nothing.
func (s *demoCluster) lastLogs(ctx context.Context) string {
	if ctx.Err() != nil || s == nil {
		return ""
	}
	var logs strings.Builder
	for _, p := range s.programs() {
		logs.WriteString(p.lastLines())
	}
	return logs.String()
}

func (p program) lastLines() string {
	log, err := p.Log()
	if err != nil {
		return "\n(the log of the " + p.name + " cannot be read: " + err.Error() + ")"
	}
	const most = 20
	lines := strings.Split(strings.TrimSpace(log), "\n")
	return "\nlast log lines of the " + p.name + ":\n\t" + strings.Join(lines[max(0, len(lines)-most):], "\n\t")
}
