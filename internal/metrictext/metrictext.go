// Package metrictext writes metrics in the text format of Prometheus.
//
// It promises that what it writes can be read by whoever reads that format, whatever
// stands in a label. It keeps no figures: who has them hands them over when he is
// asked. The usual client library would make the agent larger by a third.
package metrictext

import (
	"io"
	"slices"
	"strconv"
	"strings"
)

// ContentType is what an HTTP response with metrics says of itself.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// The kinds of metrics.
const (
	Counter = "counter"
	Gauge   = "gauge"
)

// Family is all figures of one name.
type Family struct {
	Name, Help, Kind string
	// Labels are the names of the labels of each figure.
	Labels  []string
	samples []sample
}

type sample struct {
	labels []string
	value  float64
}

// Add adds a figure, with the values of its labels.
func (f *Family) Add(value float64, labels ...string) {
	f.samples = append(f.samples, sample{labels, value})
}

// Write writes families in their order, and the figures of each in the order of their
// labels. A family without figures is left out.
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
			out.WriteString(f.Name + f.written(s.labels) + " " + strconv.FormatFloat(s.value, 'g', -1, 64) + "\n")
		}
	}
	_, err := io.WriteString(to, out.String())
	return err
}

// written returns labels as they are written behind the name.
func (f *Family) written(values []string) string {
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
