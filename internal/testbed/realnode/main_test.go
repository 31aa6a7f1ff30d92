package realnode

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// playParent makes the test binary start a node with a pod of the images that the variable
// names, print their process IDs, and wait to be killed.
const playParent = "REALNODE_TEST_PLAY_PARENT"

func TestMain(m *testing.M) {
	if images := os.Getenv(playParent); images != "" {
		fmt.Println(play(context.Background(), strings.Split(images, ",")))
		select {}
	}
	os.Exit(m.Run())
}

func play(ctx context.Context, images []string) string {
	c, err := testbed.Start(ctx, testbed.Config{ControllerManager: true, Scheduler: true})
	if err != nil {
		return err.Error()
	}
	nodes, err := Start(ctx, c, Config{Names: []string{"orphan"}, Images: images})
	if err != nil {
		return err.Error()
	}
	if err := runPod(ctx, c, "orphan"); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("started %d %s %s", nodes[0].machine.PID(), nodes[0].network.link, nodes[0].group)
}
