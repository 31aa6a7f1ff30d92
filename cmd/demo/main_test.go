package main

import (
	"os"
	"testing"

	"github.com/resourcestack/autohealer/internal/install"
)

func TestMain(m *testing.M) {
	code := m.Run()
	install.Clean()
	os.Exit(code)
}
