package main

import (
	"math"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/deploy"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestLimitMemory(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	for name, test := range map[string]struct {
		env  map[string]string
		want int64 // 0: expect an error
	}{
		"no limit":             {nil, math.MaxInt64},
		"container limit":      {map[string]string{memoryLimitVariable: "536870912"}, 483183821},
		"GOMEMLIMIT is set":    {map[string]string{memoryLimitVariable: "536870912", "GOMEMLIMIT": "1GiB"}, math.MaxInt64},
		"a node without limit": {map[string]string{memoryLimitVariable: "9223372036854775807"}, 8301034833169298227},
		"refuses a unit":       {map[string]string{memoryLimitVariable: "512Mi"}, 0},
		"refuses zero":         {map[string]string{memoryLimitVariable: "0"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			debug.SetMemoryLimit(math.MaxInt64)
			err := limitMemory(func(key string) string { return test.env[key] })
			if test.want == 0 {
				if err == nil || !strings.Contains(err.Error(), memoryLimitVariable) || !strings.Contains(err.Error(), "bytes") {
					t.Errorf("the error is %v", err)
				}
				return
			}
			if got := debug.SetMemoryLimit(-1); err != nil || got != test.want {
				t.Errorf("the limit is %d, want %d (%v)", got, test.want, err)
			}
		})
	}
}

func TestDeploymentPassesTheMemoryLimit(t *testing.T) {
	manifest := testkit.Value(deploy.Manifest("controller/controller.yaml")).Must(t)
	want := "- name: " + memoryLimitVariable + "\n          valueFrom:\n            resourceFieldRef:\n              resource: limits.memory\n"
	testkit.Check(t, strings.Contains(string(manifest), want), "the Deployment does not contain\n%s", want)
}
