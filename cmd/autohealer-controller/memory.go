package main

import (
	"fmt"
	"runtime/debug"
	"strconv"
)

// memoryLimitVariable is the environment variable with the memory limit of the container
// in bytes. A manifest cannot subtract, so it gives the limit as it is.
const memoryLimitVariable = "CONTAINER_MEMORY_LIMIT"

// limitMemory has the garbage collector keep the process below nine tenths of the memory
// limit of its container. The rest is for memory that the collector does not know, and
// for what is allocated while it runs: with a limit of 100% the kernel ends the process
// first. GOMEMLIMIT comes first, which Go has read itself.
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
