package validate_test

import (
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
	"github.com/resourcestack/autohealer/internal/dialect"
	"github.com/resourcestack/autohealer/internal/karpenter"
	"github.com/resourcestack/autohealer/internal/validate"
)

// TestRepairTranscripts runs the transcripts of repair blocks.
func TestRepairTranscripts(t *testing.T) {
	transcripts(t, "testdata/repair", func(seen map[validate.Reason]bool) command {
		return (&repairFixture{healthFixture: healthFixture{fixture: fixture{seen: seen}}}).run
	}, validate.Invalid, validate.HealthyStatus)
}

// repairFixture validates the repair blocks of a transcript.
type repairFixture struct {
	healthFixture
	stored      *v1alpha1.RepairPolicy
	storedPool  *karpenter.NodePool
	policies    []*v1alpha1.RepairPolicy
	pools       []*karpenter.NodePool
	unstated    bool
	timeoutsOff bool
}

// run knows the commands nodes, blind, clear and template of health checks, and
//
//	karpenter               the NodePools are known, even if there are none
//	pool                    adds a NodePool
//	policy                  adds a RepairPolicy
//	unstated                no provider states any condition
//	no-ready-timeouts       the feature gate of ready timeouts is off
//	stored, stored-pool     sets the stored version
//	judge, judge-pool       validates a RepairPolicy, or the block of a NodePool
//	standing, standing-pool validates a policy or a block that is in force
func (d *repairFixture) run(t *testing.T, command *datadriven.TestData) string {
	t.Helper()
	switch command.Cmd {
	case "clear":
		*d = repairFixture{healthFixture: healthFixture{fixture: fixture{seen: d.seen}}}
	case "karpenter":
		d.pools = []*karpenter.NodePool{}
	case "pool":
		d.pools = append(d.pools, readPool(t, command))
	case "policy":
		d.policies = append(d.policies, readPolicy(t, command))
	case "unstated":
		d.unstated = true
	case "no-ready-timeouts":
		d.timeoutsOff = true
	case "stored":
		d.stored = readPolicy(t, command)
	case "stored-pool":
		d.storedPool = readPool(t, command)
	case "judge":
		return d.print(validate.RepairPolicy(d.policyCase(readPolicy(t, command))))
	case "standing":
		return d.print(validate.StoredRepairPolicy(d.policyCase(readPolicy(t, command))))
	case "judge-pool":
		return d.print(validate.NodePool(validate.NodePoolCase{Pool: readPool(t, command), Stored: d.storedPool, Repairs: d.repairs()}))
	case "standing-pool":
		return d.print(validate.StoredNodePool(validate.NodePoolCase{Pool: readPool(t, command), Repairs: d.repairs()}))
	default:
		return d.healthFixture.run(t, command)
	}
	return ""
}

func (d *repairFixture) policyCase(policy *v1alpha1.RepairPolicy) validate.RepairCase {
	c := validate.RepairCase{Policy: policy, Stored: d.stored, Repairs: d.repairs()}
	if d.templates != nil {
		c.Template = d.read
	}
	return c
}

// repairs has realistic providers: they recommend half an hour.
func (d *repairFixture) repairs() validate.Repairs {
	r := validate.Repairs{Policies: d.policies, Pools: d.pools, ReadyTimeoutsOff: d.timeoutsOff}
	if !d.unstated {
		for _, words := range []string{"Ready False", "Ready Unknown", "NetworkUnavailable True", "StorageReady False"} {
			condition, status, _ := strings.Cut(words, " ")
			r.Statements.Static = append(r.Statements.Static, dialect.RepairStatement{Type: condition, Status: status, Toleration: "30m"})
		}
		r.Statements.Pools = r.Statements.Static
		r.Statements.ByNodeClass = map[string][]dialect.RepairStatement{"cloud.example.com": {{Type: "Ready", Status: "False", Toleration: "10m"}, {Type: "Preempted", Status: "True", Toleration: "0s"}}}
	}
	if !d.blind {
		r.Reported, r.Survey = d.cluster.reported(), d.cluster.survey
	}
	return r
}

// readPolicy reads a policy in short form: its block only, or all of it.
func readPolicy(t *testing.T, command *datadriven.TestData) *v1alpha1.RepairPolicy {
	t.Helper()
	policy := parse[v1alpha1.RepairPolicy](t, command)
	if policy.Name == "" && policy.GenerateName == "" {
		policy.Name = "mine"
	}
	return policy
}

func readPool(t *testing.T, command *datadriven.TestData) *karpenter.NodePool {
	t.Helper()
	pool := parse[karpenter.NodePool](t, command)
	if pool.Name == "" {
		pool.Name = "default"
	}
	return pool
}
