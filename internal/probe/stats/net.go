package stats

import (
	"regexp"

	"github.com/prometheus/procfs"
)

// networks records the statistics of interfaces that are not excluded.
func networks(r *reading, interfaces procfs.NetDev, exclude *regexp.Regexp) {
	for name, i := range interfaces {
		if exclude != nil && exclude.MatchString(name) {
			continue
		}
		for _, count := range []struct {
			id string
			n  uint64
		}{
			{"net/rx_bytes", i.RxBytes}, {"net/rx_packets", i.RxPackets}, {"net/rx_errors", i.RxErrors}, {"net/rx_dropped", i.RxDropped},
			{"net/rx_fifo", i.RxFIFO}, {"net/rx_frame", i.RxFrame}, {"net/rx_compressed", i.RxCompressed}, {"net/rx_multicast", i.RxMulticast},
			{"net/tx_bytes", i.TxBytes}, {"net/tx_packets", i.TxPackets}, {"net/tx_errors", i.TxErrors}, {"net/tx_dropped", i.TxDropped},
			{"net/tx_fifo", i.TxFIFO}, {"net/tx_collisions", i.TxCollisions}, {"net/tx_carrier", i.TxCarrier}, {"net/tx_compressed", i.TxCompressed},
		} {
			r.add(count.id, float64(count.n), name)
		}
	}
}
