package kubeapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// StatusError is an answer of the server that says no.
type StatusError struct {
	Code int
	// Reason is Kubernetes' own word for it, such as AlreadyExists; empty if the answer
	// is not one of the API server.
	Reason  string
	Message string
	// Causes are what is wrong in detail.
	Causes []Cause
	// RetryAfter is how long the server wants to be left alone; zero if it does not say.
	RetryAfter time.Duration
}

// Cause is one of the things that stand against a request.
type Cause struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Field   string `json:"field"`
}

// Error returns the words of the server.
func (e *StatusError) Error() string {
	return fmt.Sprintf("the API server answers %d: %s", e.Code, e.Message)
}

// refusal reads an answer that says no. Who is between the server and us may say so
// too, in words of his own; then the status line must do.
func refusal(response *http.Response, body []byte) *StatusError {
	var status struct {
		Message string `json:"message"`
		Reason  string `json:"reason"`
		Details struct {
			Causes []Cause `json:"causes"`
		} `json:"details"`
	}
	refused := &StatusError{Code: response.StatusCode, Message: response.Status}
	if err := json.Unmarshal(body, &status); err == nil && status.Message != "" {
		refused.Message, refused.Reason, refused.Causes = status.Message, status.Reason, status.Details.Causes
	}
	if seconds, err := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 16); err == nil {
		refused.RetryAfter = time.Duration(seconds) * time.Second
	}
	return refused
}
