package testbed

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/testkit"
)

// shell returns a program that is a shell script.
func shell(name, script string) Program {
	return Program{Name: name, Path: "/bin/sh", Args: []string{"-c", script}}
}

// awaitEnd waits until a process has ended.
func awaitEnd(t *testing.T, p *Part) {
	t.Helper()
	select {
	case <-p.Ended():
	case <-time.After(10 * time.Second):
		t.Fatalf("%s still runs", p)
	}
}

func TestProgram(t *testing.T) {
	ctx := t.Context()
	c := testkit.Value(Start(ctx, Config{})).Must(t)
	t.Cleanup(func() { _ = c.Stop() })

	t.Run("is the wrapped process, if it is a wrapper", func(t *testing.T) {
		flag := c.folder.at("led")
		program := shell("leader", `sleep 1000 & echo $! >"`+flag+`.new"; mv "`+flag+`.new" "`+flag+`"; wait; exit 3`)
		program.Leads = true
		program.Ready = func(context.Context) error {
			_, err := os.Stat(flag)
			return err
		}
		leader := testkit.Value(c.Run(ctx, program)).Must(t)
		behind := testkit.Value(os.ReadFile(flag)).Must(t)
		if pid := strconv.Itoa(leader.PID()); pid != strings.TrimSpace(string(behind)) {
			t.Errorf("it is process %s, want %s", pid, behind)
		}
		testkit.Must(t, leader.Stop(within(t, limit)))
		if _, err := os.Stat("/proc/" + strings.TrimSpace(string(behind))); err == nil {
			t.Error("the wrapped process still runs")
		}
		if err := leader.crashed(); err != nil {
			t.Errorf("a stopped process is reported as crashed: %v", err)
		}
	})
	t.Run("is ready when Ready returns nil, and can be broken", func(t *testing.T) {
		flag := c.folder.at("flag")
		program := shell("guest", `echo "hello $WORD"; touch "`+flag+`"; exec sleep 1000`)
		program.Env = []string{"WORD=world"}
		program.Ready = func(context.Context) error {
			_, err := os.Stat(flag)
			return err
		}
		guest := testkit.Value(c.Run(ctx, program)).Must(t)
		if log, err := guest.Log(); err != nil || log != "hello world\n" {
			t.Errorf("its log is %q, %v", log, err)
		}
		testkit.Must(t, guest.Kill())
		awaitEnd(t, guest)
		testkit.Must(t, os.Remove(flag))
		testkit.Must(t, guest.Restart(ctx))
		if log, _ := guest.Log(); strings.Count(log, "hello") != 2 {
			t.Errorf("after a second run its log is %q", log)
		}
	})
	t.Run("that ends before it is ready is an error", func(t *testing.T) {
		program := shell("hasty", "echo no time; exit 3")
		program.Ready = func(context.Context) error { return errors.New("not yet") }
		_, err := c.Run(ctx, program)
		if err == nil || !strings.Contains(err.Error(), "no time") || !strings.Contains(err.Error(), "exit status 3") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("addresses are different and its own", func(t *testing.T) {
		one := testkit.Value(c.Address()).Must(t)
		other := testkit.Value(c.Address()).Must(t)
		testkit.Check(t, one != other && strings.HasPrefix(one, "127.0.0.1:"), "addresses are %s and %s", one, other)
	})
	t.Run("a kubeconfig for a service account works, and applies nothing that it may not", func(t *testing.T) {
		config, err := c.ServiceAccountConfig(ctx, "default", "guest")
		testkit.Must(t, err)
		path := testkit.Value(c.WriteKubeconfig("guest", config)).Must(t)
		who, err := c.Kubectl(ctx, "auth", "whoami", "--kubeconfig="+path, "-o", "jsonpath={.status.userInfo.username}")
		testkit.Check(t, err == nil && who == "system:serviceaccount:default:guest", "it is %q, %v", who, err)
		if config.BearerTokenFile, err = c.WriteFile("guest.token", []byte(config.BearerToken)); err != nil {
			t.Fatal(err)
		}
		if config.CAFile, err = c.WriteFile("guest.ca.crt", config.CAData); err != nil {
			t.Fatal(err)
		}
		if path, err = c.WriteKubeconfig("guest", config); err != nil {
			t.Fatal(err)
		}
		written, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(written), config.BearerTokenFile) || !strings.Contains(string(written), config.CAFile) ||
			strings.Contains(string(written), config.BearerToken) || strings.Contains(string(written), "certificate-authority-data") {
			t.Errorf("a file is not kept as a reference: %s, %v", written, err)
		}
		if who, err := c.Kubectl(ctx, "auth", "whoami", "--kubeconfig="+path, "-o", "jsonpath={.status.userInfo.username}"); err != nil || who != "system:serviceaccount:default:guest" {
			t.Errorf("by files it is %q, %v", who, err)
		}
		config.BearerToken, config.BearerTokenFile = "", ""
		if _, err := c.WriteKubeconfig("unknown", config); err == nil {
			t.Error("a kubeconfig without a token was written")
		}
	})
	t.Run("manifests are applied from text", func(t *testing.T) {
		out, err := c.KubectlApply(ctx, "apiVersion: v1\nkind: Namespace\nmetadata: {name: from-text}\n")
		testkit.Check(t, err == nil && strings.Contains(out, "namespace/from-text"), "it printed %q, %v", out, err)
	})
	kept := testkit.Value(c.Folder("kept")).Must(t)
	t.Run("a folder exists, for this user only", func(t *testing.T) {
		info, err := os.Stat(kept)
		testkit.Check(t, err == nil && info.Mode() == os.ModeDir|0o700, "it is %v, %v", info, err)
		if other := testkit.Value(c.Folder("other")).Must(t); other == kept {
			t.Errorf("two have the folder %s", kept)
		}
	})
	t.Run("an unexpected exit is reported at the end, and an expected exit is not", func(t *testing.T) {
		crashing, err := c.Run(ctx, shell("crashing", "echo out of luck; exit 1"))
		testkit.Must(t, err)
		awaitEnd(t, crashing)
		leave := c.folder.at("leave")
		leaving := testkit.Value(c.Run(ctx, shell("leaving", `until [ -e "`+leave+`" ]; do sleep 0.05; done`))).Must(t)
		leaving.Expect()
		testkit.Must(t, os.WriteFile(leave, nil, 0o600))
		awaitEnd(t, leaving)
		err = c.Stop()
		if err == nil || !strings.Contains(err.Error(), "crashing ended by itself") || !strings.Contains(err.Error(), "out of luck") {
			t.Errorf("the end says %v", err)
		}
		testkit.Check(t, err == nil || !strings.Contains(err.Error(), "leaving"), "an expected exit is reported: %v", err)
		if _, err := os.Stat(kept); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a folder has outlived its cluster: %v", err)
		}
		if _, err := c.Run(ctx, shell("late", "exit 0")); err == nil {
			t.Error("a program was started on a cluster that is stopped")
		}
	})
}
