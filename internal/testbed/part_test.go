package testbed

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestPart(t *testing.T) {
	c := New(t, Config{})
	nodes := c.client.CoreV1().Nodes()
	keeps := func(t *testing.T, name string) {
		t.Helper()
		testkit.Eventually(t, "reading "+name+" back", func() error {
			_, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
			return err
		})
	}

	t.Run("that is killed comes back with the same port and data", func(t *testing.T) {
		for _, part := range []*Part{c.APIServer, c.Etcd} {
			node := createNode(t, c, "before-"+part.String())
			pid := part.PID()
			testkit.Must(t, part.Kill())
			if part.PID() != 0 {
				t.Errorf("%s: process %d after the kill", part, part.PID())
			}
			if _, err := nodes.Get(within(t, 2*time.Second), node.Name, metav1.GetOptions{ResourceVersion: node.ResourceVersion}); part == c.APIServer && err == nil {
				t.Errorf("%s answers after the kill", part)
			}
			testkit.Must(t, part.Restart(within(t, limit)))
			if part.PID() == 0 || part.PID() == pid {
				t.Errorf("%s: process %d after the restart, %d before", part, part.PID(), pid)
			}
			keeps(t, node.Name)
			createNode(t, c, "after-"+part.String())
		}
	})

	t.Run("that is asked to stop stops", func(t *testing.T) {
		node := createNode(t, c, "stop")
		testkit.Must(t, c.APIServer.Stop(within(t, limit)))
		testkit.Fails(t, c.APIServer.Stop(within(t, limit)), "stopping kube-apiserver: it does not run") // a second stop
		testkit.Must(t, c.APIServer.Restart(within(t, limit)))
		keeps(t, node.Name)
	})

	t.Run("that is paused does not answer until it is resumed", func(t *testing.T) {
		testkit.Must(t, c.APIServer.Pause())
		answer := make(chan error, 1)
		go func() {
			_, err := nodes.List(t.Context(), metav1.ListOptions{})
			answer <- err
		}()
		select {
		case err := <-answer:
			t.Errorf("an answer while paused: %v", err)
		case <-time.After(200 * time.Millisecond): // no response is expected
		}
		testkit.Must(t, c.APIServer.Resume())
		if err := <-answer; err != nil {
			t.Errorf("the answer after the pause: %v", err)
		}
	})

	t.Run("that is paused can be stopped, killed and restarted", func(t *testing.T) {
		for _, end := range []func() error{
			func() error { return c.APIServer.Restart(within(t, limit)) },
			func() error { return errors.Join(c.Etcd.Pause(), c.Etcd.Kill(), c.Etcd.Restart(within(t, limit))) },
		} {
			testkit.Must(t, c.APIServer.Pause())
			testkit.Must(t, end())
			testkit.Must(t, c.APIServer.Resume())
		}
		createNode(t, c, "after-the-pauses")
	})

	t.Run("does not get a Ctrl-C for the test", func(t *testing.T) {
		mine := syscall.Getpgrp()
		for _, part := range []*Part{c.APIServer, c.Etcd} {
			if group := testkit.Value(syscall.Getpgid(part.PID())).Must(t); group == mine {
				t.Errorf("%s is in the process group of the test", part)
			}
		}
	})

	t.Run("that does not exist is an error and not a panic", func(t *testing.T) {
		for _, fault := range []func() error{
			c.Kwok.Kill, c.Kwok.Pause, c.Kwok.Resume,
			func() error { return c.Kwok.Stop(t.Context()) },
			func() error { return c.Kwok.Restart(t.Context()) },
		} {
			testkit.Fails(t, fault(), "a part that Config does not ask for")
		}
	})
}

func TestPartThatFails(t *testing.T) {
	t.Run("to start shows its log and where all logs are", func(t *testing.T) {
		_, err := Start(t.Context(), Config{Flags: Flags{APIServer: []string{"--no-such-flag"}}})
		if err == nil || !strings.Contains(err.Error(), "starting kube-apiserver: it ended early") || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
			t.Fatalf("error %v", err)
		}
		_, logs, found := strings.Cut(err.Error(), "logs: ")
		testkit.Require(t, found, "no logs named in %v", err)
		defer os.RemoveAll(filepath.Dir(logs))
		for _, name := range []string{"etcd.log", "kube-apiserver.log"} {
			if _, err := os.Stat(filepath.Join(logs, name)); err != nil {
				t.Error(err)
			}
		}
		if rest, _ := os.ReadDir(filepath.Dir(logs)); len(rest) != 1 {
			t.Errorf("more than the logs is left: %v", rest)
		}
		if err := noProcessOf(filepath.Dir(logs)); err != nil {
			t.Error(err)
		}
	})

	t.Run("to become ready in time says what it lacks", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		_, err := Start(ctx, Config{})
		// On a busy machine not even etcd is ready in time.
		lacks := err != nil && (strings.Contains(err.Error(), "starting kube-apiserver: ") || strings.Contains(err.Error(), "starting etcd: "))
		testkit.Require(t, errors.Is(err, context.DeadlineExceeded) && lacks, "error %v", err)
		_, logs, _ := strings.Cut(err.Error(), "logs: ")
		_ = os.RemoveAll(filepath.Dir(logs))
	})

	t.Run("by itself is reported when the cluster stops", func(t *testing.T) {
		c := etcdAlone(t, Config{})
		process := testkit.Value(os.FindProcess(c.Etcd.PID())).Must(t)
		testkit.Must(t, process.Kill()) // not by the testbed's own method
		testkit.Until(t, "the end of etcd", func() bool { return c.Etcd.PID() == 0 })
		testkit.Fails(t, c.Stop(), "etcd ended by itself: signal: killed")
		if err := c.Stop(); err != nil {
			t.Errorf("a second stop: %v", err)
		}
		if _, err := os.Stat(c.folder.path); !os.IsNotExist(err) {
			t.Errorf("the folder is still there: %v", err)
		}
	})
}
