package kubeapi_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/resourcestack/autohealer/internal/kubeapi"
)

func TestDoSendsTheRequestAndReturnsTheServerTime(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPatch || r.URL.String() != "/a/b?force=true" || string(body) != "{}" ||
			r.Header.Get("Content-Type") != "application/apply-patch+yaml" || r.Header.Get("Accept") != "application/json" {
			t.Errorf("asked: %s %s %v %q (%v)", r.Method, r.URL, r.Header, body, err)
		}
		w.Header().Set("Date", "Sun, 15 Nov 2026 12:00:05 GMT")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("made"))
	}))
	defer server.Close()
	got, err := client(t, kubeapi.Access{Server: server.URL}).Do(t.Context(), kubeapi.Request{
		Method: http.MethodPatch, Path: "/a/b?force=true", ContentType: "application/apply-patch+yaml", Body: []byte("{}"),
	})
	want := kubeapi.Answer{Body: []byte("made"), Date: time.Date(2026, 11, 15, 12, 0, 5, 0, time.UTC)}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestStatusErrorHasCausesAndRetryAfter(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"kind":"Status","message":"no","reason":"Conflict","details":{"causes":[{"reason":"FieldManagerConflict","message":"with \"x\"","field":".a"}]}}`))
	}))
	defer server.Close()
	_, err := client(t, kubeapi.Access{Server: server.URL}).Do(t.Context(), kubeapi.Request{Method: http.MethodGet, Path: "/"})
	var got *kubeapi.StatusError
	if !errors.As(err, &got) {
		t.Fatalf("got %v", err)
	}
	want := &kubeapi.StatusError{Code: 409, Reason: "Conflict", Message: "no", RetryAfter: 7 * time.Second,
		Causes: []kubeapi.Cause{{Reason: "FieldManagerConflict", Message: `with "x"`, Field: ".a"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
