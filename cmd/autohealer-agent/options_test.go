package main

import (
	"flag"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/internal/commandline"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/settings"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func none(string) string { return "" }

func TestFlagsOfNodeProblemDetectorAreAccepted(t *testing.T) {
	// As in manifests, with every syntax.
	o, err := parse([]string{
		"--v=4", "-logtostderr", "--alsologtostderr=true", "--log_dir", "/tmp", "--stderrthreshold=2", "--vmodule=a=1", "--log_file_max_size=0", "--skip_headers",
		"--config.system-log-monitor=/config/kernel-monitor.json,/config/docker-monitor.json",
		"--config.system-log-monitor", "/config/systemd-monitor.json",
		"-config.custom-plugin-monitor=/config/health-checker-kubelet.json",
		"--config.system-stats-monitor=/config/system-stats-monitor.json",
		"--system-log-monitors=/config/old.json", "--custom-plugin-monitors=/config/older.json",
		"--prometheus-address=0.0.0.0", "--prometheus-port=20258", "--address=0.0.0.0", "--port", "0",
		"--k8s-exporter-heartbeat-period=5m0s", "--enable-k8s-exporter=false", "--event-namespace=default",
		"--k8s-exporter-write-events=false", "--k8s-exporter-update-node-conditions", "--kube-api-qps=10", "--kube-api-burst=20",
		"--apiserver-override=http://127.0.0.1:8080?inClusterConfig=false", "--apiserver-wait-timeout=1m", "--apiserver-wait-interval=1s",
		"--hostname-override=worker-1", "--exporter.stackdriver=/config/exporter.json", "true",
	}, none, io.Discard)
	testkit.Must(t, err)
	want := options{
		logMonitors:    []string{"/config/kernel-monitor.json", "/config/docker-monitor.json", "/config/systemd-monitor.json", "/config/old.json"},
		pluginMonitors: []string{"/config/health-checker-kubelet.json", "/config/older.json"},
		statsMonitors:  []string{"/config/system-stats-monitor.json"},
		address:        "0.0.0.0", prometheusAddress: "0.0.0.0", prometheusPort: 20258,
		hostname: "worker-1", node: "worker-1", override: "http://127.0.0.1:8080?inClusterConfig=false",
		reporting: reporting{namespace: "default", leases: "autohealer-system", heartbeat: 5 * time.Minute, conditions: true},
		stateDir:  "/var/lib/autohealer-agent", verbosity: 4, log: commandline.Log{Format: "json", Level: slog.LevelDebug},
		ignored: []string{"logtostderr", "alsologtostderr", "log-dir", "stderrthreshold", "vmodule", "log-file-max-size", "skip-headers",
			"kube-api-qps", "kube-api-burst", "apiserver-wait-timeout", "apiserver-wait-interval", "exporter.stackdriver", "true"},
	}
	testkit.NoDiff(t, cmp.Diff(want, o, cmp.AllowUnexported(options{}, reporting{})), "the options")
}

func TestVerbositySyntaxOfNodeProblemDetector(t *testing.T) {
	for _, args := range [][]string{{"--v=4"}, {"-v=4"}, {"--v", "4"}, {"-v", "4"}, {"-v4"}} {
		o, err := parse(append(args, "--config.system-log-monitor=a.json"), none, io.Discard)
		testkit.Check(t, err == nil && o.log.Level == slog.LevelDebug && len(o.logMonitors) == 1 && len(o.ignored) == 0,
			"%v: the level is %s (%v)", args, o.log.Level, err)
	}
}

func TestDefaultsAreThoseOfNodeProblemDetector(t *testing.T) {
	o := testkit.Value(parse([]string{"--config.system-log-monitor=a.json"}, none, io.Discard)).Must(t)
	testkit.Check(t, o.address == "127.0.0.1" && o.port == 20256 && o.prometheusAddress == "127.0.0.1" && o.prometheusPort == 20257,
		"the addresses are %s:%d and %s:%d", o.address, o.port, o.prometheusAddress, o.prometheusPort)
	testkit.NoDiff(t, cmp.Diff(reporting{enable: true, leases: "autohealer-system", heartbeat: 5 * time.Minute,
		events: true, conditions: true}, o.reporting, cmp.AllowUnexported(reporting{})),
		"the defaults of reporting")
	testkit.NoDiff(t, cmp.Diff([]settings.Name{{Kind: config.SystemLog, Path: "a.json"}}, o.files()), "the files")
}

// The image starts the two monitors of node-problem-detector's image. A manifest adds more.
func TestManifestArgumentsAreAddedToTheImage(t *testing.T) {
	image := "--config.system-log-monitor=/config/kernel-monitor.json,/config/readonly-monitor.json"
	for _, test := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"/config/kernel-monitor.json", "/config/readonly-monitor.json"}},
		{[]string{"--v=2"}, []string{"/config/kernel-monitor.json", "/config/readonly-monitor.json"}},
		{[]string{"--config.system-log-monitor=/config/docker-monitor.json"}, []string{"/config/kernel-monitor.json", "/config/readonly-monitor.json", "/config/docker-monitor.json"}},
		{[]string{"--config.system-log-monitor=/config/kernel-monitor.json"}, []string{"/config/kernel-monitor.json", "/config/readonly-monitor.json"}},
	} {
		o := testkit.Value(parse(append([]string{image}, test.args...), none, io.Discard)).Must(t)
		files := settings.New(settings.Config{Names: o.files(), Parse: checkFile})
		files.Read()
		var read []string
		for _, s := range files.Settings() {
			read = append(read, s.Path)
		}
		testkit.NoDiff(t, cmp.Diff(test.want, read), "%q", test.args)
	}
}

func TestEachFlagHasFilesOfItsKind(t *testing.T) {
	o, err := parse([]string{
		"--config.check-monitor=b.json,c.json", "--config.problem-sources=d.json", "--config.custom-plugin-monitor", "a.json", "--config.check-monitor=e.json",
	}, none, io.Discard)
	testkit.Must(t, err)
	testkit.NoDiff(t, cmp.Diff([]settings.Name{
		{Kind: config.CustomPlugin, Path: "a.json"},
		{Kind: config.Check, Path: "b.json"}, {Kind: config.Check, Path: "c.json"}, {Kind: config.Check, Path: "e.json"},
		{Kind: config.Problems, Path: "d.json"},
	}, o.files()),
		"the files of all flags, in order")
}

func TestNodeNameComesFromFlagThenEnvironmentThenHost(t *testing.T) {
	env := func(name string) string { return map[string]string{"NODE_NAME": "from-env"}[name] }
	file := "--config.system-log-monitor=a.json"
	for _, c := range []struct {
		args   []string
		getenv func(string) string
		ok     func(string) bool
	}{
		{[]string{file, "--hostname-override=from-flag"}, env, func(name string) bool { return name == "from-flag" }},
		{[]string{file}, env, func(name string) bool { return name == "from-env" }},
		{[]string{file}, none, func(name string) bool { return name != "" && name != "from-env" }},
	} {
		o, err := parse(c.args, c.getenv, io.Discard)
		testkit.Check(t, err == nil && c.ok(o.node), "%v: the node is %q (%v)", c.args, o.node, err)
	}
}

func TestParseRefusesWithAFix(t *testing.T) {
	file := "--config.system-log-monitor=a.json"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{file, "--promethus-port=1"}, "no flag --promethus-port: --prometheus-port is meant?"},
		{[]string{file, "--config.system-log-monitors=a.json"}, "--config.system-log-monitor is meant?"},
		{[]string{file, "--quite-another"}, "no flag --quite-another (--help-all lists all)"},
		{[]string{file, "--port"}, "--port has no value"},
		{[]string{file, "--port=many"}, "--port=many: want 1 to 65535, or 0 for none"},
		{[]string{file, "--v=much"}, "--v=much: want a whole number"},
		{[]string{file, "--log-level=loud"}, "--log-level=loud: want debug, info, warn or error"},
		{[]string{file, "-vmuch"}, "no flag --vmuch"},
		{[]string{file, "-x4"}, "no flag --x"},
		{[]string{file, "--v4"}, "no flag --v4"},
		{[]string{file, "--k8s-exporter-heartbeat-period=10"}, "want a time like 30s"},
		{[]string{file, "--port=70000"}, "want 1 to 65535"},
		{[]string{file, "--port=20257"}, "both 20257"},
		{[]string{file, "--enable-k8s-exporter=perhaps"}, "--enable-k8s-exporter=perhaps: want true or false"},
		{nil, "no configuration file is named"},
	} {
		_, err := parse(c.args, none, io.Discard)
		testkit.Check(t, err != nil && strings.Contains(err.Error(), c.want) && !strings.Contains(err.Error(), "\n"),
			"%v: the error is %v, want one line with %q", c.args, err, c.want)
	}
}

func TestHelpListsEveryFlag(t *testing.T) {
	useless := map[string]bool{"system-log-monitors": true, "custom-plugin-monitors": true}
	for _, of := range withoutEffect {
		useless[of.name] = true
	}
	for _, arg := range []string{"--help", "--help-all"} {
		var help strings.Builder
		testkit.Must(t, command(t.Context(), []string{arg}, none, &help, io.Discard))
		new(options).flags().VisitAll(func(f *flag.Flag) {
			listed := len(regexp.MustCompile(`(?m)^  -`+regexp.QuoteMeta(f.Name)+`( |$)`).FindAllString(help.String(), -1))
			want := 1
			if useless[f.Name] && arg == "--help" {
				want = 0
			}
			testkit.Same(t, listed, want, "how often %s lists --%s", arg, f.Name)
		})
	}
	var said strings.Builder
	err := command(t.Context(), []string{"-version"}, none, &said, io.Discard)
	testkit.Check(t, err == nil && said.String() == "autohealer-agent dev\n", "the output is %q (%v)", said.String(), err)
	for _, args := range [][]string{{"--no-such-flag"}, {"--log-format=xml"}, {"clear"}} {
		testkit.Same(t, commandline.ExitCode(command(t.Context(), args, none, &said, io.Discard)), 2, "the exit code for %q", args)
	}
}
