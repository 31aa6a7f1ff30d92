// Package prometheus pins the versions of Prometheus and promtool, which test the alerts and the
// dashboard, and of the CRDs of Prometheus' operator. It is a module of its own, so that its
// dependencies do not reach the others.
package prometheus

import _ "github.com/prometheus-operator/prometheus-operator/pkg/versionutil" // its module has the CRDs
