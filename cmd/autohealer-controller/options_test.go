package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/commandline"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestParse(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "somewhere")
	o, err := parse([]string{"--kubeconfig=file", "--leader-elect=false", "--webhooks=false", "--log-format=text", "--log-level=debug"}, &bytes.Buffer{})
	testkit.Must(t, err)
	if o.kubeconfig != "file" || o.namespace != "somewhere" || o.leaderElect || o.webhooks || o.log.Format != "text" || o.log.Level.String() != "DEBUG" {
		t.Errorf("parsed to %+v", o)
	}
	testkit.Check(t, o.agentNamespace == "somewhere", "namespace of agents is %q, want that of the controller", o.agentNamespace)
	testkit.Check(t, o.metricsAddress == ":8080" && o.probeAddress == ":8081", "default addresses are %s and %s", o.metricsAddress, o.probeAddress)
	o, err = parse([]string{"--webhook-dns-name=a", "--webhook-bind-address=localhost:1", "--webhook-dns-name=b", "--agent-lease-namespace=there"}, &bytes.Buffer{})
	if err != nil || o.namespace != "somewhere" || o.agentNamespace != "there" || !o.webhooks || o.webhookAddress != "localhost:1" || !slices.Equal(o.webhookNames, []string{"a", "b"}) {
		t.Errorf("parsed to %+v, %v", o, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"an unknown log format":      {[]string{"--log-format=xml"}, "--log-format=xml: want json or text"},
		"an unknown log level":       {[]string{"--log-level=loud"}, "loud"},
		"an argument":                {[]string{"now"}, `unexpected argument "now"`},
		"an unknown flag":            {[]string{"--drain"}, "drain"},
		"an unknown mode":            {[]string{"--default-mode=Off"}, `--default-mode: "Off": want Enforce, Observe or Paused`},
		"no namespace":               {[]string{"--namespace="}, "--namespace is empty"},
		"port 0 of the webhook":      {[]string{"--webhook-bind-address=:0"}, "--webhook-bind-address"},
		"unused metrics certificate": {[]string{"--metrics-cert-dir=/certs"}, "--metrics-cert-dir=/certs is not used without --metrics-secure"},
		"an empty DNS name":          {[]string{"--webhook-dns-name="}, "--webhook-dns-name is empty"},
		"a client CA without names":  {[]string{"--webhook-client-ca-file=file"}, "--webhook-client-name: want the name"},
		"client names without a CA":  {[]string{"--webhook-client-name=a"}, "without the file"},
		"deadline above the Lease":   {[]string{"--leader-elect-renew-deadline=20s"}, "each must be longer than the one before"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(test.args, &bytes.Buffer{})
			testkit.Check(t, err != nil && strings.Contains(err.Error(), test.says), "error is %v, want %q in it", err, test.says)
		})
	}
}

func TestHelpListsFlags(t *testing.T) {
	var out bytes.Buffer
	testkit.Must(t, command(t.Context(), []string{"--help"}, &out, io.Discard))
	for _, flag := range []string{"kubeconfig", "leader-elect", "metrics-bind-address", "health-probe-bind-address", "webhooks", "webhook-bind-address", "webhook-dns-name", "webhook-client-ca-file", "webhook-client-name", "log-format"} {
		testkit.Check(t, strings.Contains(out.String(), "-"+flag), "--%s is not listed", flag)
	}
}

func TestRunOutsideAClusterAsksForKubeconfig(t *testing.T) {
	err := command(t.Context(), nil, io.Discard, io.Discard)
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "--kubeconfig"), "error is %v", err)
}

func TestCleanupRefusesBadArguments(t *testing.T) {
	for _, test := range []struct{ arg, says string }{
		{"now", `unexpected argument "now"`},
		{"--leader-elect", "leader-elect"},
		{"--namespace=", "--namespace is empty"},
		{"--kubeconfig=/none", "/none"},
	} {
		if err := command(t.Context(), []string{"cleanup", test.arg}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", test.arg, err, test.says)
		}
	}
	var help bytes.Buffer
	if err := command(t.Context(), []string{"cleanup", "--help"}, io.Discard, &help); err != nil || !strings.Contains(help.String(), "-dry-run") {
		t.Errorf("%v:\n%s", err, help.String())
	}
}

func TestVersionAndExitCode(t *testing.T) {
	var out bytes.Buffer
	testkit.Must(t, command(t.Context(), []string{"--version"}, &out, io.Discard))
	testkit.Same(t, out.String(), "autohealer-controller dev\n", "the version")
	for _, args := range [][]string{{"--no-such-flag"}, {"--log-format=xml"}, {"cleanup", "--no-such-flag"}} {
		testkit.Same(t, commandline.ExitCode(command(t.Context(), args, &out, io.Discard)), 2, "the exit code for %q", args)
	}
}
