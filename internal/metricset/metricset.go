// Package metricset collects the Prometheus metrics of one part of a program, so that the
// program registers each part as one collector. It does not know what they measure.
package metricset

import "github.com/prometheus/client_golang/prometheus"

// Set is a prometheus.Collector of all its elements.
type Set []prometheus.Collector

// Describe implements prometheus.Collector.
func (s Set) Describe(to chan<- *prometheus.Desc) {
	for _, c := range s {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (s Set) Collect(to chan<- prometheus.Metric) {
	for _, c := range s {
		c.Collect(to)
	}
}

// Bool returns the value of a gauge that says yes (1) or no (0).
func Bool(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
