package main

import (
	"os"
	"testing"

	"github.com/resourcestack/autohealer/internal/rig"
)

func TestMain(m *testing.M) {
	code := m.Run()
	rig.Clean()
	os.Exit(code)
}
