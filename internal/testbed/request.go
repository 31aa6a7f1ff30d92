package testbed

import (
	"net/http"
	"strings"
)

// Request is a request to the API server in terms of the API.
type Request struct {
	// Verb is get, list, watch, create, update, patch, delete or
	// deletecollection; for paths outside the API the HTTP method in lower case.
	Verb string

	Group, Version, Resource, Subresource string
	Namespace, Name                       string

	// Path is the path of the URL.
	Path string
}

// On matches requests by verb and resource; "*" matches any. A resource has no group, a
// subresource follows a slash: On("patch", "nodes/status").
func On(verb, resource string) func(Request) bool {
	return func(r Request) bool {
		asked := r.Resource
		if r.Subresource != "" {
			asked += "/" + r.Subresource
		}
		return (verb == "*" || verb == r.Verb) && (resource == "*" || resource == asked)
	}
}

// parseRequest parses the path like the API server: /api/v1 or /apis/group/version, then
// optionally namespaces/name, then resource, name and subresource.
func parseRequest(r *http.Request) Request {
	parsed := Request{Verb: strings.ToLower(r.Method), Path: r.URL.Path}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parsed.Version, parts = parts[1], parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		parsed.Group, parsed.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return parsed
	}
	// A namespace is a resource and a scope: the next part decides. status and finalize are
	// its own subresources.
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		parsed.Namespace, parts = parts[1], parts[2:]
	}
	parsed.Resource = parts[0]
	if len(parts) > 1 {
		parsed.Name = parts[1]
	}
	if len(parts) > 2 {
		parsed.Subresource = parts[2]
	}
	parsed.Verb = verbOf(r, parsed.Name != "")
	return parsed
}

func verbOf(r *http.Request, one bool) string {
	switch r.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if one {
			return "delete"
		}
		return "deletecollection"
	case http.MethodGet, http.MethodHead:
		switch watch := r.URL.Query().Get("watch"); {
		case watch == "true" || watch == "1":
			return "watch"
		case one:
			return "get"
		default:
			return "list"
		}
	}
	return strings.ToLower(r.Method)
}
