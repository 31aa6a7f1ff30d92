package history

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestFormatPrintsOnlyTheNamedObjects(t *testing.T) {
	s := fiveWorkers(t).tell("becomeUnhealthy n1 n2; remediate n1 workers Reboot; remediate n2 workers Reboot")
	s.edit(kubelet, "n1", func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{SizeBytes: 1}} }) // an irrelevant change
	s.tell("timesOut n1 Reboot; reports n1 Reboot Succeeded=False PermanentNodeDeletionExpected=True; startsDeletion us n1 Reboot")
	text := Format(s.made, "n1", "workers")
	for _, want := range []string{
		`Ready=False/@12:01:00`, `Lease of "NodeHealthCheck-workers" renewed at`, `NodeHealthCheck {"remediationTemplate"`,
		`RebootRemediation of health check "workers" for node n1`, `spec={"size":42}`, "failed, replaces the node, timed out, is being deleted, kept by remediator.example.com/hold", "by remediator ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing says %q", want)
		}
	}
	if strings.Contains(text, " n2 ") {
		t.Error("the text has n2")
	}
	if got, want := strings.Count(text, "\n"), 8; got != want { // the check; the node twice; its Lease; its object four times
		t.Errorf("%d lines, want %d", got, want)
	}
	if t.Failed() {
		t.Log(text)
	}
}
