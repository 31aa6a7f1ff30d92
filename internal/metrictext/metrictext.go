// Package metrictext writes metrics in the text format of Prometheus.
//
// Its output is valid for any label value. It stores no values: callers pass them to each call. The
// usual client library would make the agent a third larger.
package metrictext

import (
	"io"
	"slices"
	"strconv"
	"strings"
)

// ContentType is the content type of an HTTP response with metrics.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// The types of metrics.
const (
	Counter = "counter"
	Gauge   = "gauge"
)

// Family is all samples with the same name.
type Family struct {
	Name, Help, Kind string
	// Labels are the label names of each sample.
	Labels  []string
	samples []sample
}

type sample struct {
	labels []string
	value  float64
}

// Add adds a sample with its label values.
func (f *Family) Add(value float64, labels ...string) {
	f.samples = append(f.samples, sample{labels, value})
}

// Write writes families in order, and the samples of each sorted by label values. It omits families
// without samples.
func Write(to io.Writer, families ...*Family) error {
	var out strings.Builder
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	for _, f := range families {
		if len(f.samples) == 0 {
			continue
		}
		out.WriteString("# HELP " + f.Name + " " + escape.Replace(f.Help) + "\n# TYPE " + f.Name + " " + f.Kind + "\n")
		slices.SortStableFunc(f.samples, func(a, b sample) int { return slices.Compare(a.labels, b.labels) })
		for _, s := range f.samples {
			out.WriteString(f.Name + f.formatLabels(s.labels) + " " + strconv.FormatFloat(s.value, 'g', -1, 64) + "\n")
		}
	}
	_, err := io.WriteString(to, out.String())
	return err
}

// formatLabels returns the labels in the text format.
func (f *Family) formatLabels(values []string) string {
	if len(values) == 0 {
		return ""
	}
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	pairs := make([]string, len(values))
	for i, value := range values {
		pairs[i] = f.Labels[i] + `="` + escape.Replace(strings.ToValidUTF8(value, "\uFFFD")) + `"`
	}
	return "{" + strings.Join(pairs, ",") + "}"
}
