// Package kubeapi is the agent's client for the API server. It runs on every node, so it is
// small: HTTP, a token or a client certificate, and JSON.
//
// It uses credentials that are replaced on disk without a restart. A response other than
// success becomes an error with the message of the server.
//
// It does not run a program to get credentials, as kubeconfigs of users may require. The agent
// has its own credentials.
package kubeapi
