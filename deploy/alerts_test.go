package deploy_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// TestAlerts tests the alerts with the real promtool, and compares them with the metrics of the
// program and with the page that their links lead to.
func TestAlerts(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"check", "rules", "--lint-fatal", "chart/alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		out, err := exec.CommandContext(t.Context(), "../bin/tools/promtool", args...).CombinedOutput()
		testkit.Check(t, err == nil, "promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	testkit.Must(t, yaml.Unmarshal(testkit.Value(os.ReadFile("chart/alerts.yaml")).Must(t), &rules))
	page := string(testkit.Value(os.ReadFile("../docs/reference/alerts.md")).Must(t))
	tests := string(testkit.Value(os.ReadFile("alerts_test.yaml")).Must(t))
	metrics := definedMetrics(t)
	for _, rule := range rules.Groups[0].Rules {
		testkit.Check(t, strings.Contains(tests, `alertname="`+rule.Alert+`"`), "%s has no test", rule.Alert)
		_, anchor, _ := strings.Cut(rule.Annotations["runbook_url"], "docs/reference/alerts.md#")
		hasSection := slices.ContainsFunc(strings.Split(page, "\n"), func(line string) bool { return strings.EqualFold(line, "## "+anchor) })
		testkit.Check(t, hasSection, "%s: docs/reference/alerts.md has no section %q", rule.Alert, anchor)
		for _, name := range regexp.MustCompile(`autohealer_\w+`).FindAllString(rule.Expr, -1) {
			testkit.Check(t, metrics[name], "%s uses %s, which no program has", rule.Alert, name)
		}
	}
	testkit.Check(t, len(rules.Groups[0].Rules) == 13, "there are %d alerts", len(rules.Groups[0].Rules))
}

// definedMetrics returns the names of metrics in the source code.
func definedMetrics(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	quoted := regexp.MustCompile(`"(autohealer_\w+)"`)
	testkit.Must(t, filepath.WalkDir("../internal", func(path string, file fs.DirEntry, err error) error {
		if err != nil || file.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range quoted.FindAllSubmatch(text, -1) {
			found[string(match[1])] = true
		}
		return err
	}))
	return found
}
