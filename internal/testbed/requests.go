package testbed

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// requestsEnv names a folder. Every cluster that ends adds a file there with the requests of service
// accounts, so that a test can compare them with the rights of these accounts.
const requestsEnv = "TESTBED_REQUESTS"

// SentRequest is a request that a service account was allowed to send.
type SentRequest struct {
	Account, Verb         string
	Group, Resource       string // the resource has its subresource, for example nodes/status
	Namespace, ObjectName string
}

// SentRequests returns the requests to all clusters that ended while $TESTBED_REQUESTS was set; nil if it
// is not set.
func SentRequests() (map[SentRequest]bool, error) {
	folder := os.Getenv(requestsEnv)
	if folder == "" {
		return nil, nil
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("listing the requests in %s: %w", folder, err)
	}
	sent := map[SentRequest]bool{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading requests: %w", err)
		}
		var some []SentRequest
		if err := json.Unmarshal(text, &some); err != nil {
			return nil, fmt.Errorf("reading requests from %s: %w", path, err)
		}
		for _, request := range some {
			sent[request] = true
		}
	}
	return sent, nil
}

// keepRequests adds the requests in the audit log to the folder of [SentRequests].
func keepRequests(folder, auditLog string) error {
	requests, err := sentRequests(auditLog)
	if err != nil {
		return err
	}
	content, err := json.Marshal(requests)
	if err != nil {
		return fmt.Errorf("encoding requests: %w", err)
	}
	f, err := os.CreateTemp(folder, "*.json")
	if err != nil {
		return fmt.Errorf("storing requests: %w", err)
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

// sentRequests returns the different requests of service accounts in an audit log. A watch may run
// until the end, so its start is sufficient.
func sentRequests(auditLog string) (requests []SentRequest, err error) {
	f, err := os.Open(auditLog)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the API server has not started
	}
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	defer f.Close()
	known := map[SentRequest]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var event auditEvent
		if json.Unmarshal(lines.Bytes(), &event) != nil || event.Stage == stageReceived || event.ResponseStatus.Code == http.StatusForbidden {
			continue
		}
		account, isAccount := strings.CutPrefix(event.User.Username, "system:serviceaccount:")
		object := event.ObjectRef
		request := SentRequest{
			Account: account[strings.IndexByte(account, ':')+1:], Verb: event.Verb,
			Group: object.APIGroup, Resource: strings.TrimSuffix(object.Resource+"/"+object.Subresource, "/"),
			Namespace: object.Namespace, ObjectName: object.Name,
		}
		if !isAccount {
			continue
		}
		needed := []SentRequest{request}
		if request.Verb == "patch" && event.ResponseStatus.Code == http.StatusCreated { // an apply needs both rights
			request.Verb = "create"
			needed = append(needed, request)
		}
		for _, request := range needed {
			if !known[request] {
				known[request] = true
				requests = append(requests, request)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	return requests, nil
}
