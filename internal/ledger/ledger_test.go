package ledger_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/resourcestack/autohealer/internal/ledger"
	"github.com/resourcestack/autohealer/internal/ownership"
	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/testbed"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func entry(node string) ledger.NodeWrite {
	return ledger.NodeWrite{Slot: ledger.Slot{Rule: ownership.Rule{Kind: policykind.ConditionSet, Name: "set"}, Node: node, UID: "u-" + node}, ResourceVersion: "7"}
}

// slowClient keeps one update, which the test sends later.
type slowClient struct {
	client.Client
	isSlow bool
	late   client.Object
}

func (c *slowClient) Update(ctx context.Context, object client.Object, options ...client.UpdateOption) error {
	if !c.isSlow {
		return c.Client.Update(ctx, object, options...)
	}
	c.isSlow = false
	c.late, _ = object.DeepCopyObject().(client.Object)
	return context.DeadlineExceeded
}

func TestLedger(t *testing.T) {
	cluster := testbed.New(t, testbed.Config{})
	direct := testkit.Value(client.New(cluster.AdminConfig(), client.Options{})).Must(t)
	proxy := testkit.Value(cluster.Proxy()).Must(t)
	faulty := testkit.Value(client.New(proxy.Config(cluster.AdminConfig()), client.Options{})).Must(t)
	// newNamespace returns a namespace for a subtest.
	newNamespace := func(t *testing.T) string {
		t.Helper()
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "ledger-"}}
		testkit.Must(t, direct.Create(t.Context(), ns))
		return ns.Name
	}
	claim := func(t *testing.T, c client.Client, namespace, holder string, want ...ledger.Entry) *ledger.Ledger {
		t.Helper()
		l, got, err := ledger.Claim(t.Context(), c, namespace, holder)
		testkit.Must(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("entries of the previous holder (-want +got):\n%s", diff)
		}
		return l
	}
	write := func(t *testing.T, l *ledger.Ledger, entries ...ledger.Entry) {
		t.Helper()
		testkit.Must(t, l.Write(t.Context(), entries))
	}

	// getsNoAnswer loses the answer to a write. The next write succeeds.
	getsNoAnswer := func(t *testing.T, l *ledger.Ledger, verb string) {
		t.Helper()
		cut := proxy.Inject(testbed.On(verb, "configmaps"), testbed.CutResponse(), 1)
		if err := l.Write(t.Context(), []ledger.Entry{entry("a")}); err == nil || errors.Is(err, ledger.ErrDeposed) {
			t.Fatalf("without an answer the write says %v", err)
		}
		testkit.Require(t, cut.Hits() != 0, "the connection was not cut")
		write(t, l, entry("b"))
	}

	t.Run("returns the entries of the previous holder", func(t *testing.T) {
		ns := newNamespace(t)
		first := claim(t, direct, ns, "first")
		write(t, first, entry("a"))
		write(t, first, entry("b"), entry("c"))
		second := claim(t, direct, ns, "second", entry("b"), entry("c"))
		write(t, second)
		claim(t, direct, ns, "third")
	})

	t.Run("refuses writes of the previous holder", func(t *testing.T) {
		ns := newNamespace(t)
		first := claim(t, direct, ns, "first")
		second := claim(t, direct, ns, "second")
		if err := first.Write(t.Context(), []ledger.Entry{entry("a")}); !errors.Is(err, ledger.ErrDeposed) {
			t.Errorf("the first may still write: %v", err)
		}
		write(t, second, entry("b"))
		claim(t, direct, ns, "third", entry("b"))
	})

	t.Run("rejects a write in flight during a claim", func(t *testing.T) {
		ns := newNamespace(t)
		first := claim(t, faulty, ns, "first")
		held := proxy.Inject(testbed.On("update", "configmaps"), testbed.Hold(), 1)
		answer := make(chan error, 1)
		go func() { answer <- first.Write(t.Context(), []ledger.Entry{entry("late")}) }()
		testkit.Must(t, held.Wait(t.Context(), 1))
		second := claim(t, direct, ns, "second")
		held.Lift()
		if err := <-answer; !errors.Is(err, ledger.ErrDeposed) {
			t.Errorf("the late write was answered with %v", err)
		}
		write(t, second, entry("b"))
		claim(t, direct, ns, "third", entry("b"))
	})

	// The API server makes no new version for a write that changes nothing.
	t.Run("rejects an older write after a write of the stored entries", func(t *testing.T) {
		ns := newNamespace(t)
		slow := &slowClient{Client: direct}
		first := claim(t, slow, ns, "first")
		write(t, first, entry("a"))
		slow.isSlow = true
		testkit.Check(t, first.Write(t.Context(), nil) != nil, "the write got an answer")
		write(t, first, entry("a"))
		if err := direct.Update(t.Context(), slow.late); !apierrors.IsConflict(err) {
			t.Errorf("the older write was answered with %v", err)
		}
		claim(t, direct, ns, "second", entry("a"))
	})

	t.Run("continues after a lost response", func(t *testing.T) {
		ns := newNamespace(t)
		first := claim(t, faulty, ns, "first")
		getsNoAnswer(t, first, "update")
		claim(t, direct, ns, "second", entry("b"))
	})

	erase := func(t *testing.T, namespace string) {
		t.Helper()
		stored := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ledger.Name}}
		testkit.Must(t, direct.Delete(t.Context(), stored))
	}

	t.Run("creates a deleted ledger again", func(t *testing.T) {
		ns := newNamespace(t)
		first := claim(t, direct, ns, "first")
		write(t, first, entry("a"))
		erase(t, ns)
		write(t, first, entry("a"), entry("b"))
		write(t, first, entry("a"), entry("c"))
		claim(t, direct, ns, "second", entry("a"), entry("c"))
	})

	t.Run("creates a deleted ledger again although the response is lost", func(t *testing.T) {
		ns := newNamespace(t)
		first := claim(t, faulty, ns, "first")
		erase(t, ns)
		getsNoAnswer(t, first, "create")
		claim(t, direct, ns, "second", entry("b"))
	})

	t.Run("loses a ledger that was deleted and claimed by another process", func(t *testing.T) {
		ns := newNamespace(t)
		first := claim(t, direct, ns, "first")
		erase(t, ns)
		second := claim(t, direct, ns, "second")
		if err := first.Write(t.Context(), []ledger.Entry{entry("a")}); !errors.Is(err, ledger.ErrDeposed) {
			t.Errorf("it says %v", err)
		}
		write(t, second, entry("b"))
		claim(t, direct, ns, "third", entry("b"))
	})

	t.Run("does not overwrite an unreadable ledger", func(t *testing.T) {
		ns := newNamespace(t)
		first := claim(t, direct, ns, "first")
		stored := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: ledger.Name}, Data: map[string]string{"ledger": "scribble"}}
		testkit.Must(t, direct.Update(t.Context(), stored))
		if err := first.Write(t.Context(), []ledger.Entry{entry("a")}); !errors.Is(err, ledger.ErrUnreadable) {
			t.Errorf("it says %v", err)
		}
		if err := direct.Get(t.Context(), client.ObjectKeyFromObject(stored), stored); err != nil || stored.Data["ledger"] != "scribble" {
			t.Errorf("it is %v now (%v)", stored.Data, err)
		}
		erase(t, ns)
		write(t, first, entry("b"))
		claim(t, direct, ns, "second", entry("b"))
	})

	t.Run("stores the largest ledger", func(t *testing.T) {
		ns := newNamespace(t)
		first := claim(t, direct, ns, "first")
		var entries []ledger.Entry
		for left := first.Room(); ; {
			e := entry(strings.Repeat("n", 247) + strconv.Itoa(100_000+len(entries)))
			e.UID = "0c7f0f9e-1111-4a6e-9d52-000000000001"
			if !left.Take(e) {
				break
			}
			entries = append(entries, e)
		}
		testkit.Check(t, len(entries) >= 2000, "the ledger has room for only %d nodes", len(entries))
		write(t, first, entries...)
		claim(t, direct, ns, "second", entries...)
	})

	t.Run("keeps entries of a newer version", func(t *testing.T) {
		ns := newNamespace(t)
		text, err := os.ReadFile("testdata/page-newer.json")
		testkit.Must(t, err)
		stored := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: ledger.Name},
			Data:       map[string]string{"ledger": string(text), "more": "of it"},
		}
		testkit.Must(t, direct.Create(t.Context(), stored))
		l, _, err := ledger.Claim(t.Context(), direct, ns, "first")
		testkit.Must(t, err)
		write(t, l, entry("a"))
		write(t, l)
		if err := direct.Get(t.Context(), client.ObjectKeyFromObject(stored), stored); err != nil || stored.Data["more"] != "of it" {
			t.Errorf("it is %v now (%v)", stored.Data, err)
		}
		for _, want := range []string{"MachineHealthCheck/machines", `"drain":"2026-11-15T12:00:00Z"`, `"epoch":{"of":"etcd"}`} {
			if !strings.Contains(stored.Data["ledger"], want) {
				t.Errorf("%s is missing: %s", want, stored.Data["ledger"])
			}
		}
		if again, _, err := ledger.Claim(t.Context(), direct, ns, "second"); err != nil || len(again.Kept()) != 3 {
			t.Errorf("the next one finds %+v (%v)", again, err)
		}
	})

	t.Run("lets two concurrent claims succeed one after the other", func(t *testing.T) {
		ns := newNamespace(t)
		claimed := make(chan *ledger.Ledger, 2)
		for _, holder := range []string{"one", "other"} {
			go func() {
				l, _, err := ledger.Claim(t.Context(), direct, ns, holder)
				if err != nil {
					t.Error(err)
				}
				claimed <- l
			}()
		}
		one, other := <-claimed, <-claimed
		if t.Failed() {
			return
		}
		var deposed int
		for _, l := range []*ledger.Ledger{one, other} {
			if err := l.Write(t.Context(), nil); errors.Is(err, ledger.ErrDeposed) {
				deposed++
			} else if err != nil {
				t.Error(err)
			}
		}
		testkit.Check(t, deposed == 1, "%d of 2 holders were deposed, want 1", deposed)
	})

	t.Run("reports a ConfigMap that is not a ledger", func(t *testing.T) {
		for _, data := range []map[string]string{{"ledger": "scribble"}, {"ledger": "{}"}, nil} {
			ns := newNamespace(t)
			stored := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: ledger.Name}, Data: data}
			testkit.Must(t, direct.Create(t.Context(), stored))
			if _, _, err := ledger.Claim(t.Context(), direct, ns, "first"); !errors.Is(err, ledger.ErrUnreadable) {
				t.Errorf("of %v it says %v", data, err)
			}
		}
	})
}
