package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// manifest is a file that is rendered from the chart.
type manifest struct {
	path string
	// about is the comment at its beginning.
	about string
	// args are further arguments of "helm template".
	args []string
}

var manifests = []manifest{
	{"install.yaml", `Autohealer, rendered from deploy/chart:

  kubectl apply -f deploy/install.yaml

It changes only conditions of nodes until a Guardrails object has mode Enforce
(docs/how-to/observe-first.md).`, []string{"--include-crds", "--no-hooks", "--set", "createNamespace=true,guardrails.create=false"}},
	{"cleanup.yaml", `A Job that removes what Autohealer has written to objects of others, rendered from
deploy/chart. Stop the controller first (docs/how-to/uninstall.md).`, only("cleanup")},
	{"extras/unprivileged-agent.yaml", `The agent without privileges, in place of the agent in install.yaml. The value
agent.privileged=false of the chart does the same.`, only("agent/agent", "agent.privileged=false")},
	{"extras/agent-rights.yaml", `Everything of the agent except its DaemonSet. docs/how-to/migrate-from-node-problem-detector.md
adds another account to the admission policies.`, []string{"--show-only", "templates/agent/namespace.yaml", "--show-only", "templates/agent/rights.yaml",
		"--show-only", "templates/agent/guard.yaml", "--show-only", "templates/agent/flow.yaml"}},
	{"extras/restore-rights.yaml", `The rights for --restore-nodepool-schema. The value karpenter.restoreSchema=true of the
chart adds them and the argument.`, only("controller/restore", "karpenter.restoreSchema=true")},
	{"extras/metrics-rights.yaml", `The rights for --metrics-secure. The values controller.metrics.secure=true and
agent.metrics.secure=true of the chart add them and the arguments.`, only("shared/metrics", "controller.metrics.secure=true", "agent.metrics.secure=true")},
	{"extras/network-policy.yaml", `A NetworkPolicy for the controller: write the addresses of your API server in place of
192.0.2.0/24. The values networkPolicy of the chart do the same.`, only("controller/network", "networkPolicy.enabled=true", "networkPolicy.apiServers={192.0.2.0/24}")},
}

// only returns the arguments to render one template, with values.
func only(template string, values ...string) []string {
	return []string{"--show-only", "templates/" + template + ".yaml", "--set", strings.Join(values, ",")}
}

// render writes the manifests with Helm, into the folder that has the chart.
func render(folder, helm string) error {
	if err := os.MkdirAll(filepath.Join(folder, "extras"), 0o755); err != nil {
		return err
	}
	for _, m := range manifests {
		args := append([]string{"template", "autohealer", filepath.Join(folder, "chart"), "--namespace", "autohealer-system", "--kube-version", "1.36.0"}, m.args...)
		cmd := exec.Command(helm, args...)
		var failed bytes.Buffer
		cmd.Stderr = &failed
		text, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("rendering %s: helm %s: %w\n%s", m.path, strings.Join(args, " "), err, &failed)
		}
		var out bytes.Buffer
		for line := range strings.Lines(m.about + "\n") {
			out.WriteString(strings.TrimRight("# "+line, " \n") + "\n")
		}
		out.Write(text)
		if err := os.WriteFile(filepath.Join(folder, m.path), out.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
