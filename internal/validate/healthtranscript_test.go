package validate_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/remediation"
	"github.com/resourcestack/autohealer/internal/triage"
	"github.com/resourcestack/autohealer/internal/validate"
)

// survey checks every node, as impact does for sets. Each condition is sufficient.
func (c cluster) survey(rule triage.Rule, others ...triage.Selector) (triage.Survey, error) {
	if err := rule.Validate(); err != nil {
		return triage.Survey{}, err
	}
	found := triage.Survey{Shared: make([]triage.Shared, len(others))}
	for _, name := range slices.Sorted(maps.Keys(c)) {
		n := c[name]
		if rule.AssignedOnly || !n.meets(rule.Selector) { // no node is assigned
			continue
		}
		found.Selected++
		if _, is := n.labels["node-role.kubernetes.io/control-plane"]; is {
			found.ControlPlane++
		}
		if slices.ContainsFunc(rule.When.Signals, func(s triage.Signal) bool { return n.has([]triage.Signal{s}) }) {
			if found.Matching++; found.Matching <= 5 {
				found.First = append(found.First, name)
			}
		}
		for i, who := range others {
			if shared := &found.Shared[i]; n.meets(who) {
				if shared.Nodes++; shared.Nodes == 1 {
					shared.First = name
				}
			}
		}
	}
	return found, nil
}

// TestHealthCheckTranscripts runs the transcripts of health checks.
func TestHealthCheckTranscripts(t *testing.T) {
	transcripts(t, "testdata/health", func(seen map[validate.Reason]bool) command { return (&healthFixture{fixture: fixture{seen: seen}}).run },
		validate.Invalid, validate.HealthyStatus, validate.SameKind, validate.Remediating)
}

// healthFixture validates the health checks of a transcript.
type healthFixture struct {
	fixture
	stored    *v1alpha1.NodeHealthCheck
	checks    []*v1alpha1.NodeHealthCheck
	templates map[string]string // by name: the object, or the kind of failure
	gone      []string          // remediations that no longer exist
}

// run knows the commands nodes, blind and clear of sets, and
//
//	other                   adds another health check
//	stored                  sets the stored version of the health check
//	template ns/name        sets the answer for a template: an object, or missing, unknown-kind, forbidden, broken
//	gone name               a remediation no longer exists, regardless of the status
//	judge, delete           validates a health check, or the deletion of the stored one
func (d *healthFixture) run(t *testing.T, command *datadriven.TestData) string {
	t.Helper()
	switch command.Cmd {
	case "clear":
		*d = healthFixture{fixture: fixture{seen: d.seen}}
	case "other":
		d.checks = append(d.checks, readCheck(t, command))
	case "stored":
		d.stored = readCheck(t, command)
	case "template":
		if d.templates == nil {
			d.templates = map[string]string{}
		}
		d.templates[command.CmdArgs[0].Key] = command.Input
	case "gone":
		for _, arg := range command.CmdArgs {
			d.gone = append(d.gone, arg.Key)
		}
	case "judge":
		c := validate.HealthCase{Check: readCheck(t, command), Stored: d.stored, Others: d.checks, UnderWay: d.underWay}
		if d.templates != nil {
			c.Template = d.read
		}
		if !d.blind {
			c.Reported, c.Survey = d.cluster.reported(), d.cluster.survey
		}
		return d.print(validate.HealthCheck(c))
	case "delete":
		return d.print(validate.HealthCheckDeletion(d.stored, d.underWay))
	default:
		return d.fixture.run(t, command)
	}
	return ""
}

func (d *healthFixture) underWay(ref corev1.ObjectReference) bool {
	return !slices.Contains(d.gone, ref.Name)
}

func (d *healthFixture) read(template remediation.Template) (*unstructured.Unstructured, error) {
	name := template.Name
	if template.Namespace != "" {
		name = template.Namespace + "/" + name
	}
	resource := schema.GroupResource{Group: template.Group, Resource: strings.ToLower(template.Kind) + "s"}
	switch told := d.templates[name]; told {
	case "", "missing":
		return nil, fmt.Errorf("reading template %s: %w", template, apierrors.NewNotFound(resource, template.Name))
	case "unknown-kind":
		return nil, fmt.Errorf("reading template %s: %w", template, &meta.NoKindMatchError{GroupKind: template.GroupKind(), SearchedVersions: []string{template.Version}})
	case "forbidden":
		return nil, fmt.Errorf("reading template %s: %w", template, apierrors.NewForbidden(resource, template.Name, errors.New("no right")))
	case "broken":
		return nil, errors.New("the connection\nis cut")
	default:
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(told), &object.Object); err != nil {
			return nil, err
		}
		object.SetGroupVersionKind(template.GroupVersionKind)
		object.SetNamespace(template.Namespace)
		object.SetName(template.Name)
		return object, nil
	}
}

// readCheck reads a health check in short form.
func readCheck(t *testing.T, command *datadriven.TestData) *v1alpha1.NodeHealthCheck {
	t.Helper()
	check := parse[v1alpha1.NodeHealthCheck](t, command)
	if check.Name == "" && check.GenerateName == "" {
		check.Name = "mine"
	}
	if spec := &check.Spec; spec.Unreadable == "" && spec.RemediationTemplate == nil && spec.EscalatingRemediations == nil {
		spec.RemediationTemplate = &corev1.ObjectReference{APIVersion: "example.com/v1", Kind: "RebootRemediationTemplate", Namespace: "default", Name: "quick"}
	}
	return check
}
