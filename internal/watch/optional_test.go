package watch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/resourcestack/autohealer/internal/karpenter"
)

// Without Karpenter the controller rarely asks for NodeClaims. It asks as soon as
// NodePools exist.
func TestNodeClaimsAreRarelyRequestedWithoutNodePools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			hasPools bool
			answer   error = &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "karpenter.sh", Kind: "NodeClaim"}}
			requests int
		)
		source := &DependentSource{
			IsOtherMissing: func() bool { return !hasPools },
			Source: &cache.ListWatch{
				ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
					requests++
					return &karpenter.NodeClaimList{}, answer
				},
				WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
					requests++
					return watch.NewFake(), answer
				},
			},
		}
		q := NewOptional(make(chan struct{}, 1), &karpenter.NodeClaim{}, source)
		// asks retries for a while, as a reflector does, and counts the requests.
		asks := func(until time.Duration) int {
			requests = 0
			for begun := time.Now(); time.Since(begun) < until; time.Sleep(10 * time.Second) { //nolint:forbidigo // the clock is that of the bubble
				_, failed := q.WatchWithContext(t.Context(), metav1.ListOptions{})
				_, err := q.ListWithContext(t.Context(), metav1.ListOptions{})
				if !errors.Is(failed, answer) || !errors.Is(err, answer) {
					t.Fatalf("the answers are %v and %v", failed, err)
				}
			}
			return requests
		}
		if n := asks(time.Hour); n != int(time.Hour/absentRetry) {
			t.Errorf("they are asked for %d times in an hour", n)
		}
		if is, _ := q.Availability(); is != NotServed {
			t.Errorf("the answer is %d", is)
		}
		hasPools = true // the claims are not served yet
		if n := asks(time.Minute); n != 12 {
			t.Errorf("they are asked for %d times although there are pools", n)
		}
		answer = nil
		if n := asks(time.Minute); n != 12 {
			t.Errorf("they are asked for %d times when they are there", n)
		}
		hasPools = false // the pools go first
		if n := asks(time.Minute); n != 12 {
			t.Errorf("they are asked for %d times while they are there", n)
		}
		answer = errors.New("connection refused") // says nothing about whether the kind exists
		if n := asks(time.Minute); n != 12 {
			t.Errorf("they are asked for %d times while it is unknown", n)
		}
	})
}
