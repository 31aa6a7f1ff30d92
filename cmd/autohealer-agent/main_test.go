package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/resourcestack/autohealer/internal/probe/subprocess"
)

// binary is the path of the agent, built once with the race detector for all tests.
var binary string

func TestMain(m *testing.M) {
	if subprocess.Become() {
		return
	}
	folder, err := os.MkdirTemp("", name)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	binary = filepath.Join(folder, name)
	build := exec.Command("go", "build", "-race", "-o", binary, ".")
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	code := 1
	if err := build.Run(); err == nil {
		code = m.Run()
	}
	os.RemoveAll(folder)
	os.Exit(code)
}
