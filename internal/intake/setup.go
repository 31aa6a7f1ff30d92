package intake

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/resourcestack/autohealer/catalog"
)

// Setup says where the agent listens, and to whom.
type Setup struct {
	// Socket is the path of the socket for all sources that have none of their own.
	Socket string
	// TCP is a loopback address with a port, such as 127.0.0.1:20258, for sources that
	// have a token. Empty means none.
	TCP     string
	Sources []Source
}

// Source is somebody who may report. Of Socket, UID or GID, and TokenFile at least one is
// there, and what is there must hold.
type Source struct {
	Name string
	// Socket is the path of a socket that nobody else is given.
	Socket string
	// UID and GID are those of the process that connects. Nil means any.
	UID, GID *int
	// TokenFile holds the token, or "sha256:" and the sum of it in hexadecimal digits. It
	// may change.
	TokenFile string
	// Conditions are the types that the source keeps, and nobody else.
	Conditions []string
	// Silence is how long the source may say nothing until its conditions are Unknown.
	Silence time.Duration
	// Rate is how many statuses and events a second are taken for long, Burst how many
	// at once.
	Rate, Burst int
	// Connections that the source may have at once.
	Connections int
}

// longestSocket is how long the path of a socket may be, by the kernel.
const longestSocket = 107

// ShortestSilence is what a source must be granted: silence is noticed by the second.
const ShortestSilence = 5 * time.Second

var isName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`).MatchString

// Validate says all that is wrong, each with its field and what to write instead.
func (s Setup) Validate() error {
	v := &verdict{}
	if s.TCP != "" {
		at, err := netip.ParseAddrPort(s.TCP)
		switch {
		case err != nil:
			v.refuse("tcp", "%q is no address with a port; write one such as 127.0.0.1:20258", s.TCP)
		case !at.Addr().Unmap().IsLoopback():
			v.refuse("tcp", "%s can be reached from other machines; write 127.0.0.1 or [::1]", s.TCP)
		case at.Port() == 0:
			v.refuse("tcp", "nobody would know which port it is; write one such as 127.0.0.1:20258")
		case !slices.ContainsFunc(s.Sources, func(of Source) bool { return of.isShared() && of.TokenFile != "" }):
			v.refuse("tcp", "no source can be known there; give one a tokenFile and no socket of its own, or take it away")
		}
	}
	v.socket("socket", s.Socket)
	keeper, sockets := map[string]string{}, map[string]string{filepath.Clean(s.Socket): "all"}
	for i := range s.Sources {
		v.source(fmt.Sprintf("sources[%d]", i), &s.Sources[i], s.Sources[:i], keeper, sockets)
		if s.Sources[i].isShared() && s.Socket == "" && s.TCP == "" {
			v.refuse(fmt.Sprintf("sources[%d].socket", i), "there is neither this nor one for all; write one of them")
		}
	}
	return errors.Join(v.wrong...)
}

type verdict struct{ wrong []error }

func (v *verdict) refuse(field, format string, args ...any) {
	v.wrong = append(v.wrong, fmt.Errorf(field+": "+format, args...))
}

func (v *verdict) socket(field, path string) {
	switch {
	case path == "":
	case !filepath.IsAbs(path):
		v.refuse(field, "%q does not begin at the root; write the whole path", path)
	case strings.HasSuffix(path, "/"):
		v.refuse(field, "%q is a folder; write the path of a socket in it", path)
	case len(path) > longestSocket:
		v.refuse(field, "the path has %d letters, and the kernel takes %d; write a shorter one", len(path), longestSocket)
	}
}

// source judges one source beside those before it.
func (v *verdict) source(at string, s *Source, before []Source, keeper, sockets map[string]string) {
	if !isName(s.Name) {
		v.refuse(at+".name", "%q is no name; write small letters, digits, dots and dashes, 63 at most", s.Name)
	}
	if slices.ContainsFunc(before, func(b Source) bool { return b.Name == s.Name }) {
		v.refuse(at+".name", "%s is there already; leave one of them", s.Name)
	}
	v.socket(at+".socket", s.Socket)
	if of, taken := sockets[filepath.Clean(s.Socket)]; taken && s.Socket != "" {
		v.refuse(at+".socket", "%s is that of %s already; write one that nobody else is given", s.Socket, of)
	}
	sockets[filepath.Clean(s.Socket)] = s.Name
	if s.TokenFile != "" && !filepath.IsAbs(s.TokenFile) {
		v.refuse(at+".tokenFile", "%q does not begin at the root; write the whole path", s.TokenFile)
	}
	if s.Socket == "" && s.UID == nil && s.GID == nil && s.TokenFile == "" {
		v.refuse(at, "there is nothing to know %s by; write its uid or gid, a tokenFile, or a socket of its own", s.Name)
	}
	for _, b := range before {
		if s.looksLike(&b) {
			v.refuse(at, "%s cannot be told from %s, which is known by the same uid and gid; give one of them a tokenFile or a socket of its own", s.Name, b.Name)
		}
		if s.TokenFile != "" && filepath.Clean(s.TokenFile) == filepath.Clean(b.TokenFile) && s.isShared() && b.isShared() {
			v.refuse(at+".tokenFile", "it is that of %s already; give each its own", b.Name)
		}
	}
	v.conditions(at, s, keeper)
	if s.Silence < ShortestSilence {
		v.refuse(at+".silence", "%s is too short; write at least %s", s.Silence, ShortestSilence)
	}
	for field, n := range map[string]int{".rate": s.Rate, ".burst": s.Burst, ".connections": s.Connections} {
		if n < 1 {
			v.refuse(at+field, "%d is too small; write at least 1", n)
		}
	}
}

func (v *verdict) conditions(at string, s *Source, keeper map[string]string) {
	for i, kind := range s.Conditions {
		at := fmt.Sprintf("%s.conditions[%d]", at, i)
		known, ok := catalog.Lookup(kind)
		switch {
		case !ok:
			v.refuse(at, "%q is not in the catalogue; %s", kind, meant(kind))
		case known.Source == catalog.Kubernetes:
			v.refuse(at, "%s is reported by Kubernetes itself, and two who report one condition undo each other's work; take it away", kind)
		case keeper[kind] != "":
			v.refuse(at, "%s is kept by %s already; leave it to one of them", kind, keeper[kind])
		default:
			keeper[kind] = s.Name
		}
	}
}

// meant says what may be right instead of a type that is not known.
func meant(kind string) string {
	if near, ok := catalog.Nearest(kind); ok {
		return "did you mean " + near + "?"
	}
	return "docs/conditions.md lists all that are"
}

// isShared says whether the source uses the socket of all.
func (s *Source) isShared() bool { return s.Socket == "" }

// looksLike says whether two sources may be known by the same.
func (s *Source) looksLike(other *Source) bool {
	byUser := func(s *Source) bool { return s.isShared() && s.TokenFile == "" && (s.UID != nil || s.GID != nil) }
	apart := func(a, b *int) bool { return a != nil && b != nil && *a != *b }
	return byUser(s) && byUser(other) && !apart(s.UID, other.UID) && !apart(s.GID, other.GID)
}
