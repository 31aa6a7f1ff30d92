package history

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkCheck replays a storm on nodes of realistic size: of 2,000 nodes 1,000 become
// unhealthy, half of those recover, and every node sends heartbeats.
func BenchmarkCheck(b *testing.B) {
	const nodes, unhealthyNodes = 2000, 1000
	s := newStory(b)
	s.set("deadlock", deadlock)
	s.set("ntp", ntp)
	var images []corev1.ContainerImage
	for i := range 50 {
		images = append(images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example.com/team/service-%03d:v1", i), fmt.Sprintf("registry.example.com/team/service-%03d@sha256:%064d", i, i)}})
	}
	name := func(i int) string { return fmt.Sprintf("n%04d", i) }
	for i := range nodes {
		s.node(name(i))
		s.edit(kubelet, name(i), func(n *corev1.Node) { n.Status.Images = images })
	}
	bound := nodes * 49 / 100
	for i := range unhealthyNodes {
		s.condition(name(i), "KernelDeadlock=True")
		if i < bound {
			s.we(name(i), s.place("deadlock", out))
		} else {
			s.we(name(i), s.place("deadlock", back))
		}
	}
	s.pass(time.Minute)
	for i := range unhealthyNodes / 2 {
		s.condition(name(i), "KernelDeadlock=False")
		s.we(name(i), s.remove("deadlock", out))
		if next := bound + i; next < unhealthyNodes {
			s.we(name(next), s.remove("deadlock", back), s.place("deadlock", out))
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		report := s.check(testConfig)
		if len(report.Violations) > 0 || report.Evictions != unhealthyNodes {
			b.Fatal(report)
		}
	}
	b.ReportMetric(float64(len(s.made)), "changes/op")
}

// BenchmarkCheckRemediations replays storms of two sizes. A tenth of the nodes is
// remediated and recovers, another tenth waits because the gate is closed, and every node
// sends heartbeats. The cost of a change must not depend on the number of nodes.
func BenchmarkCheckRemediations(b *testing.B) {
	for _, nodes := range []int{1000, 4000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			s := newCheckStory(b)
			s.healthCheck("workers", with(workers, `"maxUnhealthy":"10%"`))
			name := func(i int) string { return fmt.Sprintf("n%04d", i) }
			for i := range nodes {
				s.node(name(i))
				s.edit(kubelet, name(i), func(n *corev1.Node) { n.Status.Phase = "Running" })
			}
			s.pass(time.Minute)
			for i := range nodes / 10 {
				s.condition(name(i), "Ready=False")
			}
			s.pass(time.Minute)
			for i := range nodes / 10 {
				s.remediate(name(i), "workers", "Reboot")
			}
			for i := range nodes / 10 {
				s.condition(name(nodes-1-i), "Ready=False")
			}
			for i := range nodes / 10 {
				s.condition(name(i), "Ready=True")
				s.deleteObject(us, name(i), "Reboot")
				s.unlock(name(i))
			}
			cfg := checkConfig
			cfg.Unfinished = true
			b.ReportAllocs()
			for b.Loop() {
				report := s.check(cfg)
				if len(report.Violations) > 0 || report.Releases != nodes/10 {
					b.Fatal(report)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(s.made)), "ns/change")
		})
	}
}
