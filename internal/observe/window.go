package observe

import (
	"errors"
	"slices"
	"strings"

	autohealerv1alpha1 "github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/api/remediation/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/triage"
)

func windows(given []autohealerv1alpha1.Window) []dialect.Window {
	list := make([]dialect.Window, 0, len(given))
	for _, w := range given {
		list = append(list, dialect.Window{Schedule: w.Schedule, TimeZone: w.TimeZone, Duration: w.Duration})
	}
	return list
}

// annotationPath is the path of an annotation in messages.
func annotationPath(key string) string { return "metadata.annotations[" + key + "]" }

// checkWindows returns the windows in the annotation of a health check.
func checkWindows(annotations map[string]string) ([]dialect.Window, error) {
	text, has := annotations[autohealerv1alpha1.WindowsAnnotation]
	if !has {
		return nil, nil
	}
	list, err := dialect.ParseWindows(text)
	var bad *triage.FieldError
	if errors.As(err, &bad) {
		return nil, &triage.FieldError{Field: annotationPath(autohealerv1alpha1.WindowsAnnotation), Value: bad.Value, Problem: bad.Problem}
	}
	return list, err
}

// markUrgent marks the steps whose template the annotation of a health check names.
func markUrgent(annotations map[string]string, spec v1alpha1.NodeHealthCheckSpec, steps []dialect.RemediationStep) error {
	text, has := annotations[autohealerv1alpha1.UrgentAnnotation]
	if !has {
		return nil
	}
	names := make([]string, 0, len(steps))
	if spec.RemediationTemplate != nil {
		names = append(names, spec.RemediationTemplate.Name)
	}
	for _, e := range spec.EscalatingRemediations {
		names = append(names, e.RemediationTemplate.Name)
	}
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if !slices.Contains(names, name) {
			return &triage.FieldError{Field: annotationPath(autohealerv1alpha1.UrgentAnnotation), Value: name, Problem: "want the names of remediation templates of this health check, separated by commas: " + strings.Join(names, ", ")}
		}
		for i := range steps {
			steps[i].Urgent = steps[i].Urgent || names[i] == name
		}
	}
	return nil
}
