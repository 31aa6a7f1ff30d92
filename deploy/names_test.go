package deploy_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/report"
	"github.com/resourcestack/autohealer/internal/silence"
	"github.com/resourcestack/autohealer/internal/treat"
)

// The agent, the controller and the guard share no code, and have to mean the same.
func TestAgentControllerAndGuardUseTheSameNames(t *testing.T) {
	if report.FieldManager != treat.AgentFieldManager {
		t.Errorf("the agent writes as %s, and the controller as %s", report.FieldManager, treat.AgentFieldManager)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: report.LeaseName("node-1"), OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "u"}},
	}}
	if read, ok := silence.Read(lease); !ok || read.Node != "node-1" || read.Lasts != report.LeaseDuration {
		t.Errorf("the controller takes Lease %s for %+v, %v", lease.Name, read, ok)
	}
	lease.Name = report.LeaseName(strings.Repeat("n", 253))
	lease.OwnerReferences[0].Name = strings.Repeat("n", 253)
	if read, ok := silence.Read(lease); !ok || read.Node != lease.OwnerReferences[0].Name {
		t.Errorf("the controller takes Lease %s for %+v, %v", lease.Name, read, ok)
	}
	guard, err := deploy.Manifests.ReadFile("agent/3-guard.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\"['" + report.FieldManager + "', '" + report.HandManager + "']\"",
		"variables.manager != '" + report.HandManager + "'",
		"variables.lease == '" + strings.TrimSuffix(report.LeaseName("x"), "x") + "' + variables.node",
	} {
		if !strings.Contains(string(guard), want) {
			t.Errorf("the guard does not say %s", want)
		}
	}
}

// What is installed by default is what is shown to users, tested and measured.
func TestTheConfigMapOfTheAgentIsTheFileOfTheKernelMonitor(t *testing.T) {
	text, err := deploy.Manifests.ReadFile("agent/kmsg/agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../config/kernel-monitor.json")
	if err != nil {
		t.Fatal(err)
	}
	documents := strings.Split(string(text), "\n---\n")
	at := slices.IndexFunc(documents, func(d string) bool { return strings.Contains(d, "\nkind: ConfigMap\n") })
	if at < 0 {
		t.Fatal("there is no ConfigMap")
	}
	var data corev1.ConfigMap
	if err := yaml.Unmarshal([]byte(documents[at]+"\n"), &data); err != nil {
		t.Fatal(err)
	}
	if got := data.Data["kernel-monitor.json"]; got != string(want) {
		t.Errorf("the ConfigMap has %d bytes, and config/kernel-monitor.json %d; copy it", len(got), len(want))
	}
}
