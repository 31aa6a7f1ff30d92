package explore

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/engine"
	"github.com/resourcestack/autohealer/internal/triage"
)

// faults replace parts of every replica, so that a test can plant a fault. Each is nil for
// none.
type faults struct {
	client    func(client.WithWatch) client.WithWatch
	host      func(engine.WriterHost) engine.WriterHost
	checks    func(engine.StartChecks) engine.StartChecks
	writer    func(engine.NodeWriter) engine.NodeWriter
	treatment func(engine.Treatment) engine.Treatment
	rule      func(triage.Rule) triage.Rule
	delivered func(client.Object) // changes what replicas receive of objects
}
