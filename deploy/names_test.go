package deploy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/agentlease"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/report"
	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/treat"
	"github.com/resourcestack/autohealer/problem"
)

// The agent, the controller and the admission policies share no code, but must use the same
// names.
func TestAgentControllerAndGuardUseTheSameNames(t *testing.T) {
	if report.FieldManager != treat.AgentFieldManager {
		t.Errorf("the agent writes as %s, and the controller as %s", report.FieldManager, treat.AgentFieldManager)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: report.LeaseName("node-1"), OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "u"}},
	}}
	if read, ok := agentlease.Read(lease); !ok || read.Node != "node-1" || read.Duration != report.LeaseDuration {
		t.Errorf("the controller takes Lease %s for %+v, %v", lease.Name, read, ok)
	}
	lease.Name = report.LeaseName(strings.Repeat("n", 253))
	lease.OwnerReferences[0].Name = strings.Repeat("n", 253)
	if read, ok := agentlease.Read(lease); !ok || read.Node != lease.OwnerReferences[0].Name {
		t.Errorf("the controller takes Lease %s for %+v, %v", lease.Name, read, ok)
	}
	guard := testkit.Value(deploy.Manifest("agent/guard.yaml")).Must(t)
	for _, want := range []string{
		"\"['" + report.FieldManager + "', '" + report.HandManager + "']\"",
		"variables.manager != '" + report.HandManager + "'",
		"variables.lease == '" + strings.TrimSuffix(report.LeaseName("x"), "x") + "' + variables.node",
		fmt.Sprintf("variables.said.all(f, f.filter(k, k.startsWith('k:')).size() <= %d)", report.MostConditions),
		fmt.Sprintf("c.type.size() > %d ||", report.LongestType),
		fmt.Sprintf("c.?reason.orValue('').size() > %d ||", report.LongestReason), fmt.Sprintf("c.?message.orValue('').size() > %d)", report.LongestMessage),
		fmt.Sprintf("variables.event.?reason.orValue('').size() <= %d &&", report.LongestReason), fmt.Sprintf("variables.event.?message.orValue('').size() <= %d &&", report.LongestMessage),
	} {
		testkit.Check(t, strings.Contains(string(guard), want), "the guard does not say %s", want)
	}
}

// The CRD refuses the taint keys of other components, and the admission policies keep the
// controller from writing them.
func TestTheGuardOfTheControllerReservesTheSameTaintKeys(t *testing.T) {
	crd := testkit.Value(deploy.CRD("conditionsets.autohealer.resourcestack.com")).Must(t)
	guard := testkit.Value(deploy.Manifest("controller/guard.yaml")).Must(t)
	domains := regexp.MustCompile(`\(kubernetes\[\.\]io\|[^)]*\)`).FindString(strings.Join(strings.Fields(string(crd)), ""))
	testkit.Check(t, domains != "" && strings.Contains(string(guard), domains), "the guard does not have the domains %q", domains)
}

// The default installation has the same files that are documented, tested and measured.
func TestTheConfigMapOfTheAgentHasTheFilesThatAreShipped(t *testing.T) {
	data, _ := agentManifest(t, privilegedAgent)
	testkit.Check(t, len(data.Data) == 2, "it has %d files", len(data.Data))
	for name, text := range data.Data {
		shipped := testkit.Value(os.ReadFile("../config/" + name)).Must(t)
		// In a pod the mount table of the node has another path.
		shipped = bytes.Replace(shipped, []byte(`"check": "readonly-filesystems"`), []byte(`"check": "readonly-filesystems", "settings": {"mountTable": "/host/mountinfo"}`), 1)
		var got, want any
		testkit.Must(t, errors.Join(json.Unmarshal([]byte(text), &got), json.Unmarshal(shipped, &want)))
		testkit.Equal(t, name, want, got)
	}
}

// The two agents of the manifests, which differ in their privileges.
const privilegedAgent, unprivilegedAgent = "install.yaml", "extras/unprivileged-agent.yaml"

// agentManifest reads the ConfigMap and the DaemonSet of the agent from a manifest.
func agentManifest(t *testing.T, path string) (data corev1.ConfigMap, daemons appsv1.DaemonSet) {
	t.Helper()
	for _, document := range strings.Split(string(testkit.Value(os.ReadFile(path)).Must(t)), "\n---\n") {
		switch {
		case strings.Contains(document, "\nkind: ConfigMap\n"):
			testkit.Must(t, yaml.Unmarshal([]byte(document+"\n"), &data))
		case strings.Contains(document, "\nkind: DaemonSet\n"):
			testkit.Must(t, yaml.Unmarshal([]byte(document), &daemons))
		}
	}
	testkit.Require(t, data.Name != "" && daemons.Name != "", "%s has no ConfigMap or no DaemonSet", path)
	return data, daemons
}

// Every path in a file of the agent is mounted, every file has a flag of its kind, and
// every mount has a volume.
func TestTheAgentIsGivenWhatItsFilesAskFor(t *testing.T) {
	for _, variant := range []string{privilegedAgent, unprivilegedAgent} {
		data, daemons := agentManifest(t, variant)
		pod := daemons.Spec.Template.Spec
		container := pod.Containers[0]
		if !slices.Equal(container.Command, []string{"/autohealer-agent"}) {
			t.Errorf("%s: the command is %q: with that of the image come files that the ConfigMap does not have", variant, container.Command)
		}
		mounted := func(path string) bool {
			return slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool {
				return path == m.MountPath || strings.HasPrefix(path, m.MountPath+"/")
			})
		}
		for file, text := range data.Data {
			kind := config.SystemLog
			if strings.Contains(text, `"builtin"`) {
				kind = config.Check
			}
			if flag := fmt.Sprintf("--config.%s=/config/%s", kind, file); !slices.Contains(container.Args, flag) {
				t.Errorf("%s: %s is not among the arguments %q", variant, flag, container.Args)
			}
			read, warnings, err := config.Parse(file, kind, []byte(text))
			testkit.Require(t, err == nil && len(warnings) == 0, "%s: %v %v", variant, err, warnings)
			if read.Check == nil {
				continue
			}
			for _, rule := range read.Check.Rules {
				switch rule.Check {
				case config.CheckRuntime:
					if path := strings.TrimPrefix(rule.Settings.Socket, "unix://"); !mounted(path) {
						t.Errorf("%s: %s is not mounted", variant, path)
					}
				case config.CheckReadonly:
					testkit.Check(t, mounted(rule.Settings.MountTable), "%s: %s is not mounted", variant, rule.Settings.MountTable)
				case config.CheckKubelet, config.CheckConntrack:
					testkit.Check(t, pod.HostNetwork, "%s: the check %s sees another network than the node's", variant, rule.Check)
				}
				testkit.Check(t, !rule.Settings.Repair, "%s: %s is restarted unasked", variant, rule.Settings.Unit)
			}
		}
		testkit.Check(t, mounted(problem.DefaultSocket), "%s: %s, where daemons report, is not mounted", variant, problem.DefaultSocket)
	}
}
