package config_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/internal/probe/config"
	"github.com/resourcestack/autohealer/problem"
)

func TestSourcesOfProblemsHaveDefaults(t *testing.T) {
	got := parse(t, config.Problems, `{"sources": [{"name": "a", "gid": 0},
		{"name": "b", "socket": "/s", "uid": 7, "tokenFile": "/t", "conditions": ["X"], "silence": "9s", "rate": 1, "burst": 2, "connections": 3}]}`).Problems
	zero, seven := 0, 7
	if diff := cmp.Diff(&config.ProblemSources{
		Socket: problem.DefaultSocket, // the default of clients
		Sources: []config.ProblemSource{
			{Name: "a", GID: &zero, Silence: 2 * time.Minute, Rate: 20, Burst: 200, Connections: 4},
			{Name: "b", Socket: "/s", UID: &seven, TokenFile: "/t", Conditions: []string{"X"}, Silence: 9 * time.Second, Rate: 1, Burst: 2, Connections: 3},
		},
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnUnknownFieldOfSourcesCausesAWarning(t *testing.T) {
	_, warnings, err := config.Parse("f", config.Problems, []byte(`{"comment": 1, "sources": [
		{"name": "a", "gid": 7, "conditions": ["X"], "owner": "me", "silense": "9s", "tcp": "x"}], "nodeSelector": {"matchLabels": {"gpu": "true"}}}`))
	if diff := cmp.Diff([]string{
		"f: comment: not known and ignored; remove it",
		"f: sources[0].owner: not known and ignored; remove it",
		"f: sources[0].silense: not known and ignored; did you mean silence?",
		"f: sources[0].tcp: ignored here; it is a field of the top",
	}, warnings); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
