package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/internal/commandline"
	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/settings"
	"github.com/resourcestack/autohealer/internal/spelling"
)

// options are the values of the flags.
type options struct {
	logMonitors, pluginMonitors, checkMonitors, statsMonitors []string

	problemSources string

	address, prometheusAddress string
	port, prometheusPort       int
	metricsSecure              bool
	metricsCerts               string // folder

	hostname  string // value of the flag
	node      string // resolved name of the node
	override  string
	reporting reporting

	stateDir   string
	kubeconfig string
	takeOver   bool
	validate   bool
	version    bool
	verbosity  int
	log        commandline.Log

	ignored []string // given arguments without effect, for the log
}

// reporting is the part of the flags about reports to the API server.
type reporting struct {
	enable             bool
	namespace          string // of Events
	leases             string // namespace of the Lease
	heartbeat          time.Duration
	events, conditions bool
}

const (
	defaultStateDir       = "/var/lib/" + name
	defaultLeaseNamespace = "autohealer-system"
)

// list is a flag with comma-separated values that may be repeated.
type list struct{ to *[]string }

// String is for the flag package.
func (l list) String() string { return "" }

// Set adds to the list.
func (l list) Set(text string) error {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			*l.to = append(*l.to, item)
		}
	}
	return nil
}

// flags registers the flags, and sets their defaults in o.
func (o *options) flags() *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.Var(list{&o.logMonitors}, "config."+string(config.SystemLog), "comma-separated `files` with rules for logs")
	f.Var(list{&o.pluginMonitors}, "config."+string(config.CustomPlugin), "`files` with custom plugins")
	f.Var(list{&o.checkMonitors}, "config."+string(config.Check), "`files` with built-in checks")
	f.StringVar(&o.problemSources, "config."+string(config.Problems), "", "`file` with the daemons that may report problems")
	f.Var(list{&o.statsMonitors}, "config."+string(config.SystemStats), "`files` with metrics of the machine")
	f.Var(list{&o.logMonitors}, "system-log-monitors", "old name of --config.system-log-monitor")
	f.Var(list{&o.pluginMonitors}, "custom-plugin-monitors", "old name of --config.custom-plugin-monitor")

	f.StringVar(&o.address, "address", "127.0.0.1", "`address` of /healthz, /conditions and, from 127.0.0.1 only, /debug/pprof/")
	f.IntVar(&o.port, "port", 20256, "`port` of --address, 0 to disable it")
	f.StringVar(&o.prometheusAddress, "prometheus-address", "127.0.0.1", "`address` of /metrics")
	f.IntVar(&o.prometheusPort, "prometheus-port", 20257, "`port` of --prometheus-address, 0 to disable it")
	f.BoolVar(&o.metricsSecure, "metrics-secure", false, "serve metrics over TLS, only to clients whose token may get /metrics; value agent.metrics.secure of the chart adds the rights")
	f.StringVar(&o.metricsCerts, "metrics-cert-dir", "", "`directory` with tls.crt and tls.key for --metrics-secure; without it the agent creates a certificate that clients cannot verify")

	f.StringVar(&o.hostname, "hostname-override", "", "`name` of the node; default: $NODE_NAME, then the host name")
	f.StringVar(&o.override, "apiserver-override", "", "`URL` of the API server, with the query parameters inClusterConfig, insecure, auth, useServiceAccount")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file` for running outside a cluster; inside, the agent uses its service account")
	f.StringVar(&o.stateDir, "state-dir", defaultStateDir, "`directory` for log positions and conditions, which survive a restart; empty to disable")
	f.BoolVar(&o.validate, "validate", false, "validate the files, print their errors, and exit")
	f.BoolVar(&o.version, "version", false, "print the version and exit")
	f.IntVar(&o.verbosity, "v", 0, "4 and above is --log-level=debug")
	o.log.AddTo(f)

	f.BoolVar(&o.reporting.enable, "enable-k8s-exporter", true, "report to the API server")
	f.BoolVar(&o.reporting.conditions, "k8s-exporter-update-node-conditions", true, "report conditions")
	f.BoolVar(&o.reporting.events, "k8s-exporter-write-events", true, "report Events")
	f.StringVar(&o.reporting.namespace, "event-namespace", "", "`namespace` of Events; empty means default")
	f.DurationVar(&o.reporting.heartbeat, "k8s-exporter-heartbeat-period", 5*time.Minute, "how often the agent checks whether others changed its conditions; it writes only changes")
	f.StringVar(&o.reporting.leases, "lease-namespace", defaultLeaseNamespace, "`namespace` of the Lease that shows that the agent is alive; empty to disable it")
	f.BoolVar(&o.takeOver, "take-over", false, "take a condition over from another writer every time; by default only once")

	for _, without := range withoutEffect {
		f.Var(ignored{without, &o.ignored}, without.name, "ignored: "+without.why)
	}
	return f
}

// withoutEffect are flags of node-problem-detector that manifests may have.
var withoutEffect = []struct {
	name, why string
	isBool    bool
}{
	{"logtostderr", "the log goes to stderr", true},
	{"alsologtostderr", "the log goes to stderr", true},
	{"stderrthreshold", "the log goes to stderr", false},
	{"legacy-stderr-threshold-behavior", "the log goes to stderr", true},
	{"log-dir", "the log goes to stderr", false},
	{"log-file", "the log goes to stderr", false},
	{"log-file-max-size", "the log goes to stderr", false},
	{"one-output", "the log goes to stderr", true},
	{"log-backtrace-at", "the log has no source positions", false},
	{"add-dir-header", "the log has no source positions", true},
	{"skip-headers", "the log has no headers", true},
	{"skip-log-headers", "the log has no headers", true},
	{"vmodule", "--v sets one level for everything", false},
	{"apiserver-wait-timeout", "the agent starts at once and reports when the API server answers", false},
	{"apiserver-wait-interval", "the agent starts at once and reports when the API server answers", false},
	{"kube-api-qps", "the agent has its own, lower limits", false},
	{"kube-api-burst", "the agent has its own, lower limits", false},
	{"exporter.stackdriver", "nothing is reported to Stackdriver", false},
}

// ignored is a flag without effect.
type ignored struct {
	flag struct {
		name, why string
		isBool    bool
	}
	given *[]string
}

// String is for the flag package.
func (i ignored) String() string { return "" }

// Set records that the flag was given.
func (i ignored) Set(string) error {
	if !slices.Contains(*i.given, i.flag.name) {
		*i.given = append(*i.given, i.flag.name)
	}
	return nil
}

// IsBoolFlag reports whether the flag needs no value.
func (i ignored) IsBoolFlag() bool { return i.flag.isBool }

// parse reads the command line as node-problem-detector does: with one dash or two,
// underscores or dashes, a value after a blank, and a number directly after a single
// letter.
func parse(args []string, getenv func(string) string, out io.Writer) (options, error) {
	var o options
	flags := o.flags()
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		written, isFlag := strings.CutPrefix(arg, "-")
		if written = strings.TrimPrefix(written, "-"); !isFlag || written == "" {
			// node-problem-detector ignores arguments too. Manifests with "--logtostderr true" rely on it.
			o.ignored = append(o.ignored, arg)
			continue
		}
		written, value, hasValue := strings.Cut(written, "=")
		if short := shortFlag.FindStringSubmatch(arg); short != nil {
			written, value, hasValue = short[1], short[2], true
		}
		known := flags.Lookup(strings.ReplaceAll(written, "_", "-"))
		switch {
		case written == "h" || written == "help" || written == "help-all":
			usage(flags, written == "help-all", out)
			return options{}, flag.ErrHelp
		case known == nil:
			return options{}, unknownFlag(flags, written)
		case !hasValue && isBool(known.Value):
			value = "true"
		case !hasValue && len(args) == 0:
			return options{}, fmt.Errorf("--%s has no value: write --%s=value", known.Name, known.Name)
		case !hasValue:
			value, args = args[0], args[1:]
		}
		if err := flags.Set(known.Name, value); err != nil {
			return options{}, fmt.Errorf("--%s=%s: want %s", known.Name, value, wanted(known))
		}
	}
	if o.node = o.hostname; o.node == "" {
		o.node = getenv("NODE_NAME")
	}
	if o.node == "" {
		o.node, _ = os.Hostname() // without a name the agent only cannot read its labels
	}
	if o.verbosity >= 4 {
		o.log.Level = slog.LevelDebug
	}
	return o, o.check()
}

// shortFlag matches a flag of one letter with its number, for example -v4.
var shortFlag = regexp.MustCompile(`^-([a-z])(\d+)$`)

// wanted describes the values of a flag.
func wanted(f *flag.Flag) string {
	getter, _ := f.Value.(flag.Getter)
	if getter == nil {
		return "something else"
	}
	switch getter.Get().(type) {
	case bool:
		return "true or false"
	case time.Duration:
		return "a time like 30s or 5m"
	case *slog.Level:
		return "debug, info, warn or error"
	}
	if strings.HasSuffix(f.Name, "port") {
		return portRange
	}
	return "a whole number"
}

const portRange = "1 to 65535, or 0 for none"

func isBool(v flag.Value) bool {
	b, ok := v.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

func unknownFlag(flags *flag.FlagSet, written string) error {
	var names []string
	flags.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	if meant, ok := spelling.Nearest(written, names); ok {
		return fmt.Errorf("there is no flag --%s: --%s is meant? (--help-all lists all)", written, meant)
	}
	return fmt.Errorf("there is no flag --%s (--help-all lists all)", written)
}

// flagGroups groups the flags in the help by their use. All other flags have no effect, or are old
// names.
var flagGroups = []struct{ use, names string }{
	{"What to look for", "config.system-log-monitor config.check-monitor config.custom-plugin-monitor config.problem-sources config.system-stats-monitor"},
	{"Where to report", "hostname-override kubeconfig apiserver-override event-namespace lease-namespace"},
	{"What to report", "enable-k8s-exporter k8s-exporter-update-node-conditions k8s-exporter-write-events k8s-exporter-heartbeat-period take-over"},
	{"What to serve", "address port prometheus-address prometheus-port metrics-secure metrics-cert-dir"},
	{"The program", "state-dir log-format log-level v validate version"},
}

// usage prints the flags by their use, and with all also those that only old manifests have.
func usage(flags *flag.FlagSet, all bool, out io.Writer) {
	fmt.Fprintln(out, name+" detects problems of a node. It reads the configuration files of node-problem-detector.")
	fmt.Fprintln(out, name+" clear TYPE ends a condition that the running agent has found in a log.")
	listed := map[string]bool{}
	list := func(use string, names []string) {
		group := flag.NewFlagSet(use, flag.ContinueOnError)
		for _, name := range names {
			f := flags.Lookup(name)
			group.Var(f.Value, name, f.Usage)
			group.Lookup(name).DefValue, listed[name] = f.DefValue, true
		}
		fmt.Fprintf(out, "\n%s:\n", use)
		group.SetOutput(out)
		group.PrintDefaults()
	}
	for _, group := range flagGroups {
		list(group.use, strings.Fields(group.names))
	}
	var others []string
	flags.VisitAll(func(f *flag.Flag) {
		if !listed[f.Name] {
			others = append(others, f.Name)
		}
	})
	if all {
		list("For manifests of node-problem-detector", others)
	} else {
		fmt.Fprintf(out, "\n--help-all lists %d more flags of node-problem-detector, which are ignored or have another name here.\n", len(others))
	}
}

func (o *options) check() error {
	errs := []error{o.log.Check()}
	for flag, port := range map[string]int{"port": o.port, "prometheus-port": o.prometheusPort} {
		if port < 0 || port > 65535 {
			errs = append(errs, fmt.Errorf("--%s=%d: want %s", flag, port, portRange))
		}
	}
	if o.port != 0 && o.port == o.prometheusPort && o.address == o.prometheusAddress {
		errs = append(errs, fmt.Errorf("--port and --prometheus-port are both %d: give each its own", o.port))
	}
	if o.metricsCerts != "" && !o.metricsSecure {
		errs = append(errs, fmt.Errorf("--metrics-cert-dir=%s is not used without --metrics-secure: add --metrics-secure, or remove this flag", o.metricsCerts))
	}
	if len(o.files()) == 0 && !o.version {
		errs = append(errs, errors.New("no configuration file is named: write --config.system-log-monitor=/config/kernel-monitor.json, or another"))
	}
	return errors.Join(errs...)
}

// files returns all configuration files.
func (o *options) files() []settings.Name {
	var names []settings.Name
	for _, of := range []struct {
		kind  config.Kind
		paths []string
	}{{config.SystemLog, o.logMonitors}, {config.CustomPlugin, o.pluginMonitors}, {config.Check, o.checkMonitors}, {config.SystemStats, o.statsMonitors}} {
		for _, path := range of.paths {
			names = append(names, settings.Name{Kind: of.kind, Path: path})
		}
	}
	if o.problemSources != "" {
		names = append(names, settings.Name{Kind: config.Problems, Path: o.problemSources})
	}
	return names
}
