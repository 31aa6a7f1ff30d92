// Package kubeapi talks to the API server for an agent that runs on every node, and
// is as small as that asks for: HTTP, a token or a certificate, JSON.
//
// It promises that credentials which are replaced on disk are taken up without a
// restart, and that an answer which is not the one asked for becomes an error with the
// words of the server. It refuses to run a program for its credentials, as kubeconfigs
// of people do: an agent has credentials of its own.
package kubeapi
