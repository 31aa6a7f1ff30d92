package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
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
// the examples, and Prometheus gets its settings from them.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	r := release{cluster{testbed.New(t, testbed.Config{
		ControllerManager: true,
		Flags: testbed.Flags{
			APIServer:         []string{"--enable-aggregator-routing=true"},
			ControllerManager: []string{"--controllers=*,-deployment-controller,-daemonset-controller,-endpoints-controller", "--node-monitor-grace-period=1h", "--node-startup-grace-period=1h"},
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
	started := testkit.Value(install.StartAgent(t.Context(), r.Cluster, install.AgentOptions{Node: mine, Args: append(r.agentMetrics(t),
		"--config.system-log-monitor="+file(t, `{
			"plugin": "filelog", "logPath": "`+kernelLog+`", "pluginConfig": {"timestamp": "^(\\S+)", "message": "^\\S+ (.*)", "timestampFormat": "2006-01-02T15:04:05Z07:00"}, "source": "kernel-monitor",
			"conditions": [{"type": "KernelDeadlock", "reason": "KernelHasNoDeadlock", "message": "kernel has no deadlock"}],
			"rules": [{"type": "permanent", "condition": "KernelDeadlock", "reason": "DockerHung", "pattern": "task docker:\\w+ blocked for more than \\w+ seconds\\."}]}`),
	)})).Must(t)
	r.kubectl(t, "apply", "-f", file(t, chartPolicy))

	t.Run("accepts what Helm renders from every example of values", r.takesValues)

	p := r.runsPrometheus(t, []scrape{r.controllerScrape(t, controller.Metrics), r.agentScrape(t, started.Metrics)})
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
	t.Helper()
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

// agentMetrics returns the arguments of the DaemonSet about metrics, for a pod on this machine.
func (r release) agentMetrics(t *testing.T) (args []string) {
	t.Helper()
	set := testkit.Value(clientFor(t, r.AdminConfig()).AppsV1().DaemonSets(agent).Get(t.Context(), "autohealer-agent", metav1.GetOptions{})).Must(t)
	container := set.Spec.Template.Spec.Containers[0]
	for _, arg := range container.Args {
		if strings.HasPrefix(arg, "--metrics-") || strings.HasPrefix(arg, "--prometheus-") {
			args = append(args, arg)
		}
	}
	testkit.Require(t, slices.Equal(args, []string{"--metrics-secure", "--prometheus-address=$(POD_IP)"}), "the arguments about metrics are %q", args)
	hasAddress := slices.ContainsFunc(container.Env, func(v corev1.EnvVar) bool {
		return v.Name == "POD_IP" && v.ValueFrom != nil && v.ValueFrom.FieldRef != nil && v.ValueFrom.FieldRef.FieldPath == "status.podIP"
	})
	testkit.Check(t, hasAddress, "POD_IP is not the address of the pod: %+v", container.Env)
	return []string{args[0], strings.ReplaceAll(args[1], "$(POD_IP)", "127.0.0.1")}
}

// scrape is a program to scrape, and how its monitor says to do it.
type scrape struct {
	job, address string
	endpoint     monitorEndpoint
}

// monitor is a ServiceMonitor or a PodMonitor.
type monitor struct {
	Spec struct {
		Selector                       metav1.LabelSelector
		Endpoints, PodMetricsEndpoints []monitorEndpoint
	}
}

type monitorEndpoint struct {
	Port, Scheme, BearerTokenFile string
	Authorization                 struct{ Credentials corev1.SecretKeySelector }
	TLSConfig                     struct{ InsecureSkipVerify bool }
}

// controllerScrape follows the ServiceMonitor to the port of the Deployment.
func (r release) controllerScrape(t *testing.T, address string) scrape {
	t.Helper()
	api := clientFor(t, r.AdminConfig())
	var m monitor
	r.getJSON(t, &m, "servicemonitor", "-n", namespace, account)
	endpoint := m.Spec.Endpoints[0]
	deployment := testkit.Value(api.AppsV1().Deployments(namespace).Get(t.Context(), account, metav1.GetOptions{})).Must(t)
	services := testkit.Value(api.CoreV1().Services(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&m.Spec.Selector)})).Must(t)
	var ports []int32
	for _, service := range services.Items {
		for _, port := range service.Spec.Ports {
			if port.Name == endpoint.Port {
				testkit.Check(t, selects(service.Spec.Selector, deployment.Spec.Template), "Service %s selects %v, not the pods of the controller", service.Name, service.Spec.Selector)
				ports = append(ports, portNamed(deployment.Spec.Template.Spec, port.TargetPort.StrVal))
			}
		}
	}
	testkit.Check(t, slices.Equal(ports, []int32{8080}), "the ServiceMonitor leads to the ports %v, and the controller serves its metrics on 8080", ports)
	testkit.Check(t, endpoint.BearerTokenFile != "", "the ServiceMonitor names no token")
	return scrape{"autohealer-controller", address, endpoint}
}

// agentScrape follows the PodMonitor to the port of the DaemonSet.
func (r release) agentScrape(t *testing.T, address string) scrape {
	t.Helper()
	var m monitor
	r.getJSON(t, &m, "podmonitor", "-n", agent, "autohealer-agent")
	endpoint := m.Spec.PodMetricsEndpoints[0]
	template := testkit.Value(clientFor(t, r.AdminConfig()).AppsV1().DaemonSets(agent).Get(t.Context(), "autohealer-agent", metav1.GetOptions{})).Must(t).Spec.Template
	testkit.Check(t, selects(m.Spec.Selector.MatchLabels, template), "the PodMonitor selects %v, and the pods are %v", m.Spec.Selector, template.Labels)
	testkit.Same(t, portNamed(template.Spec, endpoint.Port), 20257, "the port to which the PodMonitor leads")
	return scrape{"autohealer-agent", address, endpoint}
}

func selects(labels map[string]string, template corev1.PodTemplateSpec) bool {
	has := maps.Clone(template.Labels)
	maps.Copy(has, labels)
	return len(labels) > 0 && maps.Equal(has, template.Labels)
}

// portNamed returns the port of a container, 0 without one.
func portNamed(pod corev1.PodSpec, name string) int32 {
	for _, port := range pod.Containers[0].Ports {
		if port.Name == name {
			return port.ContainerPort
		}
	}
	return 0
}

// runsPrometheus runs a Prometheus that scrapes each program as its monitor says, both with the token
// to which the PodMonitor refers.
func (r release) runsPrometheus(t *testing.T, programs []scrape) prometheus {
	t.Helper()
	folder := t.TempDir()
	api := clientFor(t, r.AdminConfig())
	reference := programs[len(programs)-1].endpoint.Authorization.Credentials
	var token []byte
	testkit.Eventually(t, "the token of the chart", func() error {
		secret, err := api.CoreV1().Secrets(agent).Get(t.Context(), reference.Name, metav1.GetOptions{})
		if err != nil || len(secret.Data[reference.Key]) == 0 {
			return fmt.Errorf("it has no token (%w)", err)
		}
		token = secret.Data[reference.Key]
		return nil
	})
	tokenFile := filepath.Join(folder, "token")
	testkit.Must(t, os.WriteFile(tokenFile, token, 0o600))
	var config strings.Builder
	// The interval is also the timeout of a scrape.
	fmt.Fprintf(&config, "global: {scrape_interval: 5s, evaluation_interval: 5s}\nrule_files: [%s]\nscrape_configs:\n", testkit.Value(filepath.Abs("chart/alerts.yaml")).Must(t))
	for _, s := range programs {
		fmt.Fprintf(&config, "- {job_name: %s, scheme: %q, authorization: {credentials_file: %s}, tls_config: {insecure_skip_verify: %t}, static_configs: [{targets: [%q]}]}\n", s.job, s.endpoint.Scheme, tokenFile, s.endpoint.TLSConfig.InsecureSkipVerify, s.address)
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

// withoutData are metrics of the dashboard that this cluster has no series of. A test of docs/generate
// compares their names and labels with the programs.
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
