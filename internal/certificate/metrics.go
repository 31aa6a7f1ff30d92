package certificate

import "github.com/prometheus/client_golang/prometheus"

var (
	endDesc = prometheus.NewDesc("autohealer_webhook_certificate_expiration_timestamp_seconds",
		"When the certificate ends that the webhook shows, in seconds since 1970; absent while it has none.", nil, nil)
	trustedDesc = prometheus.NewDesc("autohealer_webhook_certificate_trusted",
		"1 if the ValidatingWebhookConfiguration trusts the certificate that the webhook shows, 0 if it does not, is missing or could not be read yet.", nil, nil)
)

// Describe lists the metrics.
func (k *Manager) Describe(to chan<- *prometheus.Desc) {
	to <- endDesc
	to <- trustedDesc
}

// Collect reads the metrics.
func (k *Manager) Collect(to chan<- prometheus.Metric) {
	shown, seen := k.served.Load(), k.trust.Load()
	isTrusted := 0.
	if shown != nil {
		to <- prometheus.MustNewConstMetric(endDesc, prometheus.GaugeValue, float64(shown.pair.Leaf.NotAfter.Unix()))
		if seen != nil && seen.has(shown.authority) {
			isTrusted = 1
		}
	}
	to <- prometheus.MustNewConstMetric(trustedDesc, prometheus.GaugeValue, isTrusted)
}
