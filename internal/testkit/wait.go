package testkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Wait configures waits. The zero value suits two busy cores.
type Wait struct {
	Limit   time.Duration // default: a minute
	First   time.Duration // the pause before the second check, default: 5 ms; it grows
	Longest time.Duration // the longest pause between two checks, default: 100 ms
	// Explain returns text for the message of a failure, for example logs; nil for none.
	Explain func() string
}

// Eventually waits with the default limit until check returns no error.
func Eventually(tb testing.TB, what string, check func() error) {
	tb.Helper()
	Wait{}.Eventually(tb, what, check)
}

// Until waits with the default limit until is returns true.
func Until(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	Wait{}.Eventually(tb, what, func() error {
		if !is() {
			return errors.New("it is not so")
		}
		return nil
	})
}

// Eventually waits until check returns no error. If it does not, the test ends with the last
// errors in the order in which they changed.
func (w Wait) Eventually(tb testing.TB, what string, check func() error) {
	tb.Helper()
	w = w.withDefaults()
	var found []string
	for range w.Looks(tb.Context()) {
		err := check()
		if err == nil {
			return
		}
		if len(found) == 0 || found[len(found)-1] != err.Error() {
			found = append(found, err.Error())
		}
	}
	explanation := ""
	if w.Explain != nil {
		explanation = "\n" + w.Explain()
	}
	tb.Fatalf("%s: not after %s:\n\t%s%s", what, w.Limit, strings.Join(found[max(0, len(found)-5):], "\n\t"), explanation)
}

// Looks yields at growing intervals until the limit has passed or ctx ends. A check of many
// objects costs CPU time that the tested programs need, so it runs less and less often.
func (w Wait) Looks(ctx context.Context) iter.Seq[int] {
	w = w.withDefaults()
	return func(yield func(int) bool) {
		pause, deadline := w.First, time.Now().Add(w.Limit)
		for i := 0; yield(i) && time.Now().Before(deadline); i++ {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
			pause = min(pause*5/4, w.Longest)
		}
	}
}

func (w Wait) withDefaults() Wait {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&w.Limit, time.Minute}, {&w.First, 5 * time.Millisecond}, {&w.Longest, 100 * time.Millisecond}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	return w
}

// Get returns the status code and the body of a URL.
func Get(ctx context.Context, url string) (code int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// Answers returns an error unless a URL answers with 200 within five seconds.
func Answers(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	code, _, err := Get(ctx, url)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s: %d %s", url, code, http.StatusText(code))
	}
	return err
}
