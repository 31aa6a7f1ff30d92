package main

import (
	"fmt"
	"runtime/debug"
	"strconv"
)

// memoryLimitVariable is the environment variable with the memory limit of the container
// in bytes. A manifest cannot subtract, so it passes the full limit.
const memoryLimitVariable = "CONTAINER_MEMORY_LIMIT"

// limitMemory sets the Go memory limit to nine tenths of the container's limit. The rest
// is for memory that the garbage collector does not manage and for allocations while it
// runs: at 100% the kernel kills the process first. GOMEMLIMIT, which Go reads itself,
// takes precedence.
func limitMemory(getenv func(string) string) error {
	text := getenv(memoryLimitVariable)
	if text == "" || getenv("GOMEMLIMIT") != "" {
		return nil
	}
	limit, err := strconv.ParseInt(text, 10, 64)
	if err != nil || limit <= 0 {
		return fmt.Errorf("environment variable %s is %q: want the memory limit of the container in bytes, for example 536870912; or set GOMEMLIMIT instead", memoryLimitVariable, text)
	}
	debug.SetMemoryLimit(limit - limit/10)
	return nil
}
