// Package certificate manages the serving certificate of the webhook: it creates the
// certificate, renews it long before it expires, and writes the CA bundle of the webhook
// configuration. A renewal causes no failed request. The API server trusts a new CA before
// a replica serves a certificate of it, and trusts the old CA until no replica serves a
// certificate of that one. The manager reports missing permissions. It stores private keys
// only in the Secret that all replicas share.
//
// The library open-policy-agent/cert-controller creates and checks certificates; this
// package decides when. The library's own loop is not used: it ends the process if the
// Secret or the webhook is missing, and reads every Secret of the namespace. It also
// replaces the trusted CA at once, so that writes fail until every replica has the new
// certificate.
package certificate
