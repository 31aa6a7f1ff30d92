// Package protowatch reads watches and lists off the connection by hand, for kinds of which so
// many versions come that Kubernetes' own decoder would cost more than all that is done
// with them. It promises that whoever decodes is given every object as the API server
// sent it, without a copy and one at a time, that a connection that may be dead is given
// up, and that a list which breaks off is none. It refuses to know any kind: what an
// object means, its reader says.
package protowatch
