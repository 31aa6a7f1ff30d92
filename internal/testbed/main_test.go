package testbed

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// playParent makes the test binary start a cluster in the folder that the variable names,
// print it, and wait to be killed.
const playParent = "TESTBED_TEST_PLAY_PARENT"

func TestMain(m *testing.M) {
	if folder := os.Getenv(playParent); folder != "" {
		_, err := Start(context.Background(), Config{ControllerManager: true, Scheduler: true, Kwok: true, Dir: folder})
		fmt.Println("started:", err)
		select {}
	}
	os.Exit(m.Run())
}
