package kubeapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// StatusError is a response with which the server refuses a request.
type StatusError struct {
	Code int
	// Reason is the reason of the Kubernetes Status, for example AlreadyExists. It is
	// empty if the response is not from the API server.
	Reason  string
	Message string
	// Causes are the details of the refusal.
	Causes []Cause
	// RetryAfter is how long the server asks the client to wait, or zero.
	RetryAfter time.Duration
}

// Cause is one detail of a refusal.
type Cause struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Field   string `json:"field"`
}

// Error returns the message of the server.
func (e *StatusError) Error() string {
	return fmt.Sprintf("the API server answers %d: %s", e.Code, e.Message)
}

// newStatusError reads a refusal. A proxy in between may refuse too, in another format. Then
// the message is the status line.
func newStatusError(response *http.Response, body []byte) *StatusError {
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
