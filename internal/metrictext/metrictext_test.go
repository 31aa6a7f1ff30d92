package metrictext_test

import (
	"math"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/metrictext"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestWrite(t *testing.T) {
	problems := &metrictext.Family{Name: "problem_counter", Help: "How often.\nReally.", Kind: metrictext.Counter, Labels: []string{"reason"}}
	problems.Add(2, "b")
	problems.Add(0, `a"\`+"\n")
	up := &metrictext.Family{Name: "up", Help: "Whether.", Kind: metrictext.Gauge}
	up.Add(1)
	pair := &metrictext.Family{Name: "pair", Help: "Two.", Kind: metrictext.Gauge, Labels: []string{"x", "y"}}
	pair.Add(0.5, "1", "2")
	var text strings.Builder
	testkit.Must(t, metrictext.Write(&text, problems, &metrictext.Family{Name: "none"}, up, pair))
	want := `# HELP problem_counter How often.\nReally.
# TYPE problem_counter counter
problem_counter{reason="a\"\\\n"} 0
problem_counter{reason="b"} 2
# HELP up Whether.
# TYPE up gauge
up 1
# HELP pair Two.
# TYPE pair gauge
pair{x="1",y="2"} 0.5
`
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
}

// The parser of Prometheus reads what was meant, whatever stands in a label.
func TestPrometheusReadsWhatIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		label, value := rapid.String().Draw(t, "label"), rapid.Float64().Draw(t, "value")
		f := &metrictext.Family{Name: "a", Help: rapid.String().Draw(t, "help"), Kind: metrictext.Gauge, Labels: []string{"x", "y"}}
		f.Add(value, "1", label)
		var text strings.Builder
		testkit.Must(t, metrictext.Write(&text, f))
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(text.String()))
		if err != nil {
			t.Fatalf("%v\n%s", err, text.String())
		}
		got := families["a"].Metric[0]
		if got.Label[1].GetValue() != label || got.Gauge.GetValue() != value && !math.IsNaN(value) {
			t.Errorf("%s is read as %v", text.String(), got)
		}
	})
}
