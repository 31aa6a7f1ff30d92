package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/install"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestPrometheus installs the chart with everything for monitoring. A real Prometheus scrapes the
// controller and an agent with the token that the chart makes, and answers the queries of the
// dashboard and of the alerts. The CRDs of Prometheus' operator validate the monitors, also those of
// the examples.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	r := release{folder: t.TempDir(), cluster: cluster{testbed.New(t, testbed.Config{
		ControllerManager: true,
		Flags: testbed.Flags{
			APIServer:         []string{"--enable-aggregator-routing=true"},
			ControllerManager: []string{"--controllers=*,-deployment-controller,-endpoints-controller", "--node-monitor-grace-period=1h", "--node-startup-grace-period=1h"},
		},
	})}}
	testkit.Value(r.CreateNodes(t.Context(), testbed.Nodes{Count: 5})).Must(t)
	install.RunJobs(t, r.Cluster)
	for _, kind := range []string{"servicemonitors", "podmonitors", "prometheusrules"} {
		r.kubectl(t, "apply", "--server-side", "-f", filepath.Join(prometheusOperator(t), "example/prometheus-operator-crd/monitoring.coreos.com_"+kind+".yaml"))
	}
	r.kubectl(t, "wait", "--for=condition=Established", "--timeout=1m", "crd/podmonitors.monitoring.coreos.com", "crd/servicemonitors.monitoring.coreos.com", "crd/prometheusrules.monitoring.coreos.com")
	statements := filepath.Join(t.TempDir(), "statements.yaml")
	testkit.Must(t, os.WriteFile(statements, []byte("statements: [{type: XidError, status: 'True'}]"), 0o600))
	testkit.Must(t, r.upgrade(t, "--set", "enforce={Taint},controller.args={--repair-statements="+statements+"},controller.metrics.secure=true,controller.metrics.serviceMonitor.enabled=true,controller.metrics.serviceMonitor.interval=30s,"+
		"agent.metrics.podMonitor.enabled=true,agent.metrics.podMonitor.labels.release=main,prometheusRule.enabled=true,grafanaDashboard.enabled=true"))
	controller := r.runsController(t)
	kernelLog := filepath.Join(t.TempDir(), "kernel.log")
	testkit.Must(t, os.WriteFile(kernelLog, nil, 0o600))
	agent := testkit.Value(install.StartAgent(t.Context(), r.Cluster, install.AgentOptions{Node: mine, Args: []string{
		"--metrics-secure", "--config.system-log-monitor=" + file(t, `{
			"plugin": "filelog", "logPath": "`+kernelLog+`", "pluginConfig": {"timestamp": "^(\\S+)", "message": "^\\S+ (.*)", "timestampFormat": "2006-01-02T15:04:05Z07:00"}, "source": "kernel-monitor",
			"conditions": [{"type": "KernelDeadlock", "reason": "KernelHasNoDeadlock", "message": "kernel has no deadlock"}],
			"rules": [{"type": "permanent", "condition": "KernelDeadlock", "reason": "DockerHung", "pattern": "task docker:\\w+ blocked for more than \\w+ seconds\\."}]}`),
	}})).Must(t)
	r.kubectl(t, "apply", "-f", file(t, chartPolicy))

	t.Run("accepts what Helm renders from every example of values", r.takesValues)

	p := r.runsPrometheus(t, map[string]string{"controller": controller.Metrics, "agent": agent.Metrics})
	line := time.Now().Format(time.RFC3339) + " task docker:20744 blocked for more than 120 seconds.\n"
	testkit.Must(t, os.WriteFile(kernelLog, []byte(line), 0o600))
	testkit.Eventually(t, "the taint of the user's policy", func() error {
		if got := r.tainted(t); !slices.Equal(got, []string{mine}) {
			return fmt.Errorf("tainted are %v", got)
		}
		return nil
	})

	t.Run("scrapes both programs", func(t *testing.T) {
		testkit.Eventually(t, "both programs to be scraped", func() error {
			var answer struct {
				Data struct {
					ActiveTargets []struct{ Health, LastError, ScrapePool string }
				}
			}
			if err := p.get("/api/v1/targets", nil, &answer); err != nil {
				return err
			}
			if count := len(answer.Data.ActiveTargets); count != 2 {
				return fmt.Errorf("there are %d targets", count)
			}
			for _, target := range answer.Data.ActiveTargets {
				if target.Health != "up" {
					return fmt.Errorf("%s is %s: %s", target.ScrapePool, target.Health, target.LastError)
				}
			}
			return nil
		})
	})
	t.Run("answers every query of the dashboard", func(t *testing.T) { p.answersDashboard(t, r) })
	t.Run("evaluates every alert", p.evaluatesAlerts)
	t.Run("reloads the file of --repair-statements", func(t *testing.T) { p.reloadsStatements(t, r, statements) })
}

// reloadsStatements edits the file under a running controller.
func (p prometheus) reloadsStatements(t *testing.T, r release, path string) {
	r.kubectl(t, "apply", "-f", file(t, `{"apiVersion": "autohealer.resourcestack.com/v1alpha1", "kind": "RepairPolicy", "metadata": {"name": "static"}, "spec": {"selector": {}, "repair": {}}}`))
	for _, step := range []struct {
		about, statements string
		inForce           bool
		unhealthy         string
	}{
		{"the node has no condition of the first file", "", true, "0"},
		{"a new condition makes the node unhealthy", "statements: [{type: KernelDeadlock, status: 'True'}]", true, "1"},
		{"a mistake changes nothing", "statements: [{type: XidError, state: 'True'}]", false, "1"},
		{"the correction is in force", "statements: [{type: XidError, status: 'True'}]", true, "0"},
	} {
		if step.statements != "" {
			testkit.Must(t, os.WriteFile(path, []byte(step.statements), 0o600))
		}
		testkit.Eventually(t, step.about, func() error {
			got := r.kubectl(t, "get", "repairpolicy", "static", "-o", "jsonpath={.status.nodes} {.status.unhealthy}")
			inForce, err := p.query("autohealer_repair_statements_in_force == 1")
			if err == nil && (got != "5 "+step.unhealthy || inForce == 1 != step.inForce) {
				err = fmt.Errorf("nodes and unhealthy are %q, and %d of 1 files are in force", got, inForce)
			}
			return err
		})
	}
}

// prometheusOperator returns the folder of the source of Prometheus' operator.
func prometheusOperator(t *testing.T) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/prometheus-operator/prometheus-operator")
	list.Dir = "../testbed/prometheus"
	out, err := list.Output()
	testkit.Must(t, err)
	return strings.TrimSpace(string(out))
}

// prometheus is the base URL of a running Prometheus.
type prometheus string

// runsPrometheus runs a Prometheus that scrapes each program, with the token of the chart.
func (r release) runsPrometheus(t *testing.T, programs map[string]string) prometheus {
	t.Helper()
	folder := t.TempDir()
	api := clientFor(t, r.AdminConfig())
	var token []byte
	testkit.Eventually(t, "the token of the chart", func() error {
		secret, err := api.CoreV1().Secrets(agent).Get(t.Context(), "autohealer-metrics-reader", metav1.GetOptions{})
		if err != nil || len(secret.Data[corev1.ServiceAccountTokenKey]) == 0 {
			return fmt.Errorf("it has no token (%w)", err)
		}
		token = secret.Data[corev1.ServiceAccountTokenKey]
		return nil
	})
	tokenFile := filepath.Join(folder, "token")
	testkit.Must(t, os.WriteFile(tokenFile, token, 0o600))
	var config strings.Builder
	// The interval is also the timeout of a scrape.
	fmt.Fprintf(&config, "global: {scrape_interval: 5s, evaluation_interval: 5s}\nrule_files: [%s]\nscrape_configs:\n", testkit.Value(filepath.Abs("chart/alerts.yaml")).Must(t))
	for name, address := range programs {
		fmt.Fprintf(&config, "- {job_name: autohealer-%s, scheme: https, authorization: {credentials_file: %s}, tls_config: {insecure_skip_verify: true}, static_configs: [{targets: [%q]}]}\n", name, tokenFile, address)
	}
	address := testkit.Value(r.Address()).Must(t)
	testkit.Value(r.Run(t.Context(), testbed.Program{
		Name: "prometheus", Path: testkit.Value(filepath.Abs("../bin/tools/prometheus")).Must(t),
		Args:  []string{"--config.file=" + file(t, config.String()), "--storage.tsdb.path=" + filepath.Join(folder, "data"), "--web.listen-address=" + address},
		Ready: func(ctx context.Context) error { return testkit.Answers(ctx, "http://"+address+"/-/ready") },
	})).Must(t)
	return prometheus("http://" + address)
}

func (p prometheus) get(path string, query url.Values, into any) error {
	response, err := http.Get(string(p) + path + "?" + query.Encode()) //nolint:noctx // it answers at once
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(into)
}

// query returns the number of series of an expression.
func (p prometheus) query(expression string) (int, error) {
	var answer struct {
		Status, Error string
		Data          struct{ Result []any }
	}
	if err := p.get("/api/v1/query", url.Values{"query": {expression}}, &answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s: %s", expression, answer.Error)
	}
	return len(answer.Data.Result), nil
}

// withoutData are metrics of the dashboard that this cluster has no series of.
var withoutData = map[string]bool{
	"autohealer_remediations_total": true, "autohealer_remediation_recovery_duration_seconds": true, // there is no health check
	"autohealer_repairs_total": true, "autohealer_nodepool_held": true, // there is no NodePool
	"autohealer_taints_removed_total":      true,
	"autohealer_agent_config_valid":        true,
	"autohealer_agent_monitor_up":          true,
	"autohealer_guardrail_held":            true,
	"autohealer_nodehealthcheck_deferring": true,
}

var metricName = regexp.MustCompile(`(autohealer|problem|process)_\w+`)

func (p prometheus) answersDashboard(t *testing.T, r release) {
	t.Helper()
	config := testkit.Value(clientFor(t, r.AdminConfig()).CoreV1().ConfigMaps(namespace).Get(t.Context(), "autohealer-dashboard", metav1.GetOptions{})).Must(t)
	testkit.Same(t, config.Labels["grafana_dashboard"], "1", "the label for Grafana's sidecar")
	var dashboard struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr, LegendFormat string }
		}
	}
	testkit.Must(t, json.Unmarshal([]byte(config.Data["autohealer.json"]), &dashboard))
	shown := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			shown++
			used := strings.TrimSuffix(metricName.FindString(target.Expr), "_bucket")
			expression := strings.ReplaceAll(target.Expr, "$__rate_interval", "1m")
			testkit.Eventually(t, panel.Title, func() error {
				count, err := p.query(expression)
				if err == nil && count == 0 && !withoutData[used] {
					err = fmt.Errorf("%s has no data", expression)
				}
				return err
			})
		}
	}
	testkit.Check(t, shown > 25, "the dashboard has %d queries", shown)
}

func (p prometheus) evaluatesAlerts(t *testing.T) {
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError, State string }
			}
		}
	}
	testkit.Eventually(t, "all alerts to be evaluated", func() error {
		if err := p.get("/api/v1/rules", nil, &answer); err != nil {
			return err
		}
		if count := len(answer.Data.Groups); count != 1 {
			return fmt.Errorf("there are %d groups of rules", count)
		}
		for _, rule := range answer.Data.Groups[0].Rules {
			// Before the first scrape, for example, no replica seems to lead.
			if rule.Health != "ok" || rule.State != "inactive" {
				return fmt.Errorf("%s is %s and %s: %s", rule.Name, rule.Health, rule.State, rule.LastError)
			}
		}
		return nil
	})
}
