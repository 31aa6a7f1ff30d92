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

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/internal/probe/settings"
	"github.com/resourcestack/autohealer/internal/spelling"
)

// options are what the command line says.
type options struct {
	logMonitors, pluginMonitors, checkMonitors, statsMonitors []string

	problemSources string

	address, prometheusAddress string
	port, prometheusPort       int

	hostname  string // as the flag says
	node      string // that it is about
	override  string
	reporting reporting

	stateDir   string
	kubeconfig string
	takeOver   bool
	validate   bool
	version    bool
	verbosity  int

	ignored []string // what was given and has no effect, for the log
}

// reporting is what the flags say of the way to the API server.
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

// list is a flag whose value is separated by commas, and that may be given again.
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

// flags returns the flags, and fills o with their defaults.
func (o *options) flags() *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.Var(list{&o.logMonitors}, "config."+string(config.SystemLog), "`files`, separated by commas, that say what is looked for in logs")
	f.Var(list{&o.pluginMonitors}, "config."+string(config.CustomPlugin), "`files` that say which programs are run")
	f.Var(list{&o.checkMonitors}, "config."+string(config.Check), "`files` that say which checks are made that are built in")
	f.StringVar(&o.problemSources, "config."+string(config.Problems), "", "`file` that says which daemons may report problems, and where")
	f.Var(list{&o.statsMonitors}, "config."+string(config.SystemStats), "`files` that say which figures become metrics")
	f.Var(list{&o.logMonitors}, "system-log-monitors", "old name of --config.system-log-monitor")
	f.Var(list{&o.pluginMonitors}, "custom-plugin-monitors", "old name of --config.custom-plugin-monitor")

	f.StringVar(&o.address, "address", "127.0.0.1", "`address` on which /healthz, /conditions and, to 127.0.0.1 only, /debug/pprof/ are served")
	f.IntVar(&o.port, "port", 20256, "`port` of it, 0 for none")
	f.StringVar(&o.prometheusAddress, "prometheus-address", "127.0.0.1", "`address` on which /metrics is served")
	f.IntVar(&o.prometheusPort, "prometheus-port", 20257, "`port` of it, 0 for none")

	f.StringVar(&o.hostname, "hostname-override", "", "`name` of the node, if it is neither in $NODE_NAME nor that of the host")
	f.StringVar(&o.override, "apiserver-override", "", "`address` of the API server, with settings behind a question mark: inClusterConfig, insecure, auth, useServiceAccount")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file` for running outside of a cluster; in a cluster the service account is used")
	f.StringVar(&o.stateDir, "state-dir", defaultStateDir, "`folder` in which positions and conditions outlive a restart, empty for none")
	f.BoolVar(&o.validate, "validate", false, "check the files, say what is wrong with them, and exit")
	f.BoolVar(&o.version, "version", false, "say which version this is, and exit")
	f.IntVar(&o.verbosity, "v", 0, "how much is logged: from `level` 4 on also what is of no interest to most")

	f.BoolVar(&o.reporting.enable, "enable-k8s-exporter", true, "report to the API server")
	f.BoolVar(&o.reporting.conditions, "k8s-exporter-update-node-conditions", true, "report conditions")
	f.BoolVar(&o.reporting.events, "k8s-exporter-write-events", true, "report Events")
	f.StringVar(&o.reporting.namespace, "event-namespace", "", "`namespace` of Events; empty means default")
	f.DurationVar(&o.reporting.heartbeat, "k8s-exporter-heartbeat-period", 5*time.Minute, "how often, at most, the node is looked at for what others have made of its conditions; nothing is written that has not changed")
	f.StringVar(&o.reporting.leases, "lease-namespace", defaultLeaseNamespace, "`namespace` of the Lease by which the controller knows that the agent lives; empty: there is none")
	f.BoolVar(&o.takeOver, "take-over", false, "take over conditions that another writes as often as he does; otherwise once")

	for _, without := range withoutEffect {
		f.Var(ignored{without, &o.ignored}, without.name, "taken and without effect: "+without.why)
	}
	return f
}

// withoutEffect are flags that manifests of node-problem-detector have.
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
	{"log-backtrace-at", "the log has no lines of code", false},
	{"add-dir-header", "the log has no lines of code", true},
	{"skip-headers", "the log has no headers", true},
	{"skip-log-headers", "the log has no headers", true},
	{"vmodule", "there is one level for everything: --v", false},
	{"apiserver-wait-timeout", "the agent begins at once, and reports when the API server answers", false},
	{"apiserver-wait-interval", "the agent begins at once, and reports when the API server answers", false},
	{"kube-api-qps", "what is reported is bounded in itself, and far lower", false},
	{"kube-api-burst", "what is reported is bounded in itself, and far lower", false},
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

// Set notes that the flag was given.
func (i ignored) Set(string) error {
	if !slices.Contains(*i.given, i.flag.name) {
		*i.given = append(*i.given, i.flag.name)
	}
	return nil
}

// IsBoolFlag says whether the flag may stand without a value.
func (i ignored) IsBoolFlag() bool { return i.flag.isBool }

// parse reads the command line. One dash is as good as two, an underscore as good as a
// dash, a value may follow behind a blank, and a number at once behind a single letter.
func parse(args []string, getenv func(string) string, out io.Writer) (options, error) {
	var o options
	flags := o.flags()
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		written, isFlag := strings.CutPrefix(arg, "-")
		if written = strings.TrimPrefix(written, "-"); !isFlag || written == "" {
			// As the old agent does, which "--logtostderr true" of a manifest relies on.
			o.ignored = append(o.ignored, arg)
			continue
		}
		written, value, hasValue := strings.Cut(written, "=")
		if short := attached.FindStringSubmatch(arg); short != nil {
			written, value, hasValue = short[1], short[2], true
		}
		known := flags.Lookup(strings.ReplaceAll(written, "_", "-"))
		switch {
		case written == "h" || written == "help":
			usage(flags, out)
			return options{}, flag.ErrHelp
		case known == nil:
			return options{}, unknown(flags, written)
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
		o.node, _ = os.Hostname() // without a name only labels cannot be asked for
	}
	return o, o.check()
}

// attached is a flag of one letter with its number, as in -v4.
var attached = regexp.MustCompile(`^-([a-z])(\d+)$`)

// wanted says which values a flag takes.
func wanted(f *flag.Flag) string {
	getter, _ := f.Value.(flag.Getter)
	if getter == nil {
		return "something else"
	}
	switch getter.Get().(type) {
	case bool:
		return "true or false"
	case time.Duration:
		return "a time such as 30s or 5m"
	}
	if strings.HasSuffix(f.Name, "port") {
		return aPort
	}
	return "a whole number"
}

const aPort = "1 to 65535, or 0 for none"

func isBool(v flag.Value) bool {
	b, ok := v.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

func unknown(flags *flag.FlagSet, written string) error {
	var names []string
	flags.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	if meant, ok := spelling.Nearest(written, names); ok {
		return fmt.Errorf("there is no flag --%s: --%s is meant? (--help lists all)", written, meant)
	}
	return fmt.Errorf("there is no flag --%s (--help lists all)", written)
}

func usage(flags *flag.FlagSet, out io.Writer) {
	fmt.Fprintln(out, name+" looks after a node, by the configuration files of node-problem-detector. Its flags:")
	flags.SetOutput(out)
	flags.PrintDefaults()
}

func (o *options) check() error {
	var wrong []error
	for flag, port := range map[string]int{"port": o.port, "prometheus-port": o.prometheusPort} {
		if port < 0 || port > 65535 {
			wrong = append(wrong, fmt.Errorf("--%s=%d: want %s", flag, port, aPort))
		}
	}
	if o.port != 0 && o.port == o.prometheusPort && o.address == o.prometheusAddress {
		wrong = append(wrong, fmt.Errorf("--port and --prometheus-port are both %d: give each its own", o.port))
	}
	if len(o.files()) == 0 && !o.version {
		wrong = append(wrong, errors.New("no configuration file is named: write --config.system-log-monitor=/config/kernel-monitor.json, or another"))
	}
	return errors.Join(wrong...)
}

// files returns all files that are named.
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

func (o *options) logger(out io.Writer) *slog.Logger {
	level := slog.LevelInfo
	if o.verbosity >= 4 {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
}
