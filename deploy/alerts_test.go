package deploy_test

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/resourcestack/autohealer/internal/testkit"
	"github.com/resourcestack/autohealer/internal/triage"
)

// TestAlerts tests the alerts with the real promtool, and compares them with the page that
// their links lead to.
func TestAlerts(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"check", "rules", "--lint-fatal", "chart/alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		out, err := exec.CommandContext(t.Context(), "../bin/tools/promtool", args...).CombinedOutput()
		testkit.Check(t, err == nil, "promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	var rules struct {
		Groups []struct {
			Rules []alert
		}
	}
	testkit.Must(t, yaml.Unmarshal(testkit.Value(os.ReadFile("chart/alerts.yaml")).Must(t), &rules))
	page := string(testkit.Value(os.ReadFile("../docs/reference/alerts.md")).Must(t))
	tests := string(testkit.Value(os.ReadFile("alerts_test.yaml")).Must(t))
	listed := listedAlerts(t, page)
	for _, rule := range rules.Groups[0].Rules {
		testkit.Check(t, strings.Contains(tests, "- alertname: "+rule.Alert+"\n"), "%s has no test", rule.Alert)
		_, anchor, _ := strings.Cut(rule.Annotations["runbook_url"], "docs/reference/alerts.md#")
		hasSection := slices.ContainsFunc(strings.Split(page, "\n"), func(line string) bool { return strings.EqualFold(line, "## "+anchor) })
		testkit.Check(t, hasSection, "%s: docs/reference/alerts.md has no section %q", rule.Alert, anchor)
		testkit.Same(t, rule.Labels["severity"]+" "+rule.For, listed[rule.Alert], "severity and time of %s, which docs/reference/alerts.md lists", rule.Alert)
		delete(listed, rule.Alert)
		if rule.Alert == "AutohealerNodeHeld" {
			rule.namesEveryWait(t, page)
		}
	}
	testkit.Check(t, len(listed) == 0, "docs/reference/alerts.md lists alerts that do not exist: %v", listed)
}

// alert is a rule of chart/alerts.yaml.
type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// listedAlerts returns the severity and the time of each alert in the table of the page.
func listedAlerts(t *testing.T, page string) map[string]string {
	t.Helper()
	listed := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| (.*Autohealer.*) \| (\w+) \| (\d+) (m|h)[a-z]+`).FindAllStringSubmatch(page, -1) {
		for _, name := range regexp.MustCompile(`\bAutohealer\w+`).FindAllString(row[1], -1) {
			listed[name] = row[2] + " " + row[3] + row[4]
		}
	}
	testkit.Check(t, len(listed) >= 12, "the table of docs/reference/alerts.md has %d alerts", len(listed))
	return listed
}

// namesEveryWait compares the states of the alert and of its section on the page with the reasons
// for which a due treatment does not start.
func (a alert) namesEveryWait(t *testing.T, page string) {
	t.Helper()
	// These have an alert of their own (GivenUp), end by themselves, or are the decision of a user.
	others := []triage.Code{triage.GivenUp, triage.OutsideWindow, triage.OnHold, triage.Retrying}
	var want []string
	for code := triage.Code(1); code <= triage.NotSelected; code++ {
		if code.IsWait() && !slices.Contains(others, code) {
			want = append(want, code.String())
		}
	}
	slices.Sort(want)
	states := regexp.MustCompile(`state=~"([\w|]+)"`).FindStringSubmatch(a.Expr)
	testkit.Require(t, states != nil, "%s selects no states", a.Alert)
	testkit.Equal(t, "the states of "+a.Alert, want, slices.Sorted(slices.Values(strings.Split(states[1], "|"))))
	_, section, _ := strings.Cut(page, "\n## "+a.Alert+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var explained []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*`) \\|").FindAllStringSubmatch(section, -1) {
		explained = append(explained, strings.Split(strings.Trim(row[1], "`"), "`, `")...)
	}
	slices.Sort(explained)
	testkit.Equal(t, "the states in the table of docs/reference/alerts.md", want, explained)
}
