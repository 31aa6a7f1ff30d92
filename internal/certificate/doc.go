// Package certificate keeps the certificate of the webhook server: it makes one
// when there is none, replaces it long before it ends, tells the API server whom
// to trust, and hands it to whoever serves. It promises that a replacement
// refuses no request: a new authority is trusted before anything is served that
// it has signed, and the old one until no replica serves what it has signed,
// whichever of them is older. It says what it may not do, and it refuses to write a
// key anywhere but into the Secret that all replicas share.
//
// Certificates are made and checked by open-policy-agent/cert-controller; when
// is decided here. That project's own loop ends the whole process when the
// Secret is missing or the webhook cannot be told, reads every Secret of the
// namespace, and swaps the trusted authority at once, so that writes fail until
// every replica has followed.
package certificate
