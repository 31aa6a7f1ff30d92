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
	"github.com/resourcestack/autohealer/internal/spelling"
)

// Setup configures the addresses and the sources of an intake.
type Setup struct {
	// Socket is the path of the socket for all sources without their own socket.
	Socket string
	// TCP is a loopback address with a port, for example 127.0.0.1:20258, for sources with a
	// token. Empty means none.
	TCP     string
	Sources []Source
}

// Source is a daemon that may report problems. It has at least one of Socket, UID or GID, and
// TokenFile. A client must match all of them that are set.
type Source struct {
	Name string
	// Socket is the path of a socket for this source alone.
	Socket string
	// UID and GID are those of the client process. Nil means any.
	UID, GID *int
	// TokenFile contains the token, or "sha256:" and its hash in hexadecimal digits. Its
	// content may change.
	TokenFile string
	// Conditions are the condition types that only this source reports.
	Conditions []string
	// Declared are condition types that are not in the catalog.
	Declared []catalog.Condition
	// Silence is how long the source may not report until its conditions become Unknown.
	Silence time.Duration
	// Rate is the number of statuses and events per second that are accepted in the long run,
	// Burst the number at once.
	Rate, Burst int
	// Connections is the maximum number of connections of the source.
	Connections int
}

// maxSocketPath is the kernel's limit for the path of a socket.
const maxSocketPath = 107

// ShortestSilence is the minimum of Source.Silence.
const ShortestSilence = 5 * time.Second

var isName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`).MatchString

// Validate returns all errors, each with its field and a fix.
func (s Setup) Validate() error {
	v := &validator{}
	if s.TCP != "" {
		at, err := netip.ParseAddrPort(s.TCP)
		switch {
		case err != nil:
			v.addf("tcp", "%q is not an address with a port; write one like 127.0.0.1:20258", s.TCP)
		case !at.Addr().Unmap().IsLoopback():
			v.addf("tcp", "%s can be reached from other machines; write 127.0.0.1 or [::1]", s.TCP)
		case at.Port() == 0:
			v.addf("tcp", "the port must not be 0; write one like 127.0.0.1:20258")
		case !slices.ContainsFunc(s.Sources, func(of Source) bool { return of.isShared() && of.TokenFile != "" }):
			v.addf("tcp", "no source can authenticate there; give a source a tokenFile and no socket, or remove this address")
		}
	}
	v.socket("socket", s.Socket)
	reporter, sockets := map[string]string{}, map[string]string{filepath.Clean(s.Socket): "all sources"}
	for i := range s.Sources {
		v.source(fmt.Sprintf("sources[%d]", i), &s.Sources[i], s.Sources[:i], reporter, sockets)
		if s.Sources[i].isShared() && s.Socket == "" && s.TCP == "" {
			v.addf(fmt.Sprintf("sources[%d].socket", i), "the source has no socket and there is no shared one; set one of them")
		}
	}
	return errors.Join(v.errs...)
}

type validator struct{ errs []error }

func (v *validator) addf(field, format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf(field+": "+format, args...))
}

func (v *validator) socket(field, path string) {
	switch {
	case path == "":
	case !filepath.IsAbs(path):
		v.addf(field, "%q is not an absolute path; write the whole path", path)
	case strings.HasSuffix(path, "/"):
		v.addf(field, "%q is a directory; write the path of a socket in it", path)
	case len(path) > maxSocketPath:
		v.addf(field, "the path has %d bytes, and the kernel allows %d; write a shorter one", len(path), maxSocketPath)
	}
}

// source validates one source against those before it.
func (v *validator) source(at string, s *Source, before []Source, reporter, sockets map[string]string) {
	if !isName(s.Name) {
		v.addf(at+".name", "%q is not a valid name; use at most 63 lower-case letters, digits, dots and dashes", s.Name)
	}
	if slices.ContainsFunc(before, func(b Source) bool { return b.Name == s.Name }) {
		v.addf(at+".name", "%s exists already; remove one of them", s.Name)
	}
	v.socket(at+".socket", s.Socket)
	if of, taken := sockets[filepath.Clean(s.Socket)]; taken && s.Socket != "" {
		v.addf(at+".socket", "%s is already used by %s; write another path", s.Socket, of)
	}
	sockets[filepath.Clean(s.Socket)] = s.Name
	if s.TokenFile != "" && !filepath.IsAbs(s.TokenFile) {
		v.addf(at+".tokenFile", "%q is not an absolute path; write the whole path", s.TokenFile)
	}
	if s.Socket == "" && s.UID == nil && s.GID == nil && s.TokenFile == "" {
		v.addf(at, "%s cannot be identified; set its uid or gid, a tokenFile, or its own socket", s.Name)
	}
	for _, b := range before {
		if s.indistinguishableFrom(&b) {
			v.addf(at, "%s cannot be distinguished from %s, which has the same uid and gid; give one of them a tokenFile or its own socket", s.Name, b.Name)
		}
		if s.TokenFile != "" && filepath.Clean(s.TokenFile) == filepath.Clean(b.TokenFile) && s.isShared() && b.isShared() {
			v.addf(at+".tokenFile", "%s already uses this file; give each source its own", b.Name)
		}
	}
	v.conditions(at, s, reporter)
	if s.Silence < ShortestSilence {
		v.addf(at+".silence", "%s is too short; write at least %s", s.Silence, ShortestSilence)
	}
	for field, n := range map[string]int{".rate": s.Rate, ".burst": s.Burst, ".connections": s.Connections} {
		if n < 1 {
			v.addf(at+field, "%d is too small; write at least 1", n)
		}
	}
}

func (v *validator) conditions(at string, s *Source, reporter map[string]string) {
	for i, kind := range s.Conditions {
		at := fmt.Sprintf("%s.conditions[%d]", at, i)
		known, ok := s.lookup(kind)
		switch {
		case !ok:
			v.addf(at, "%q is neither in the catalogue nor declared in the conditions of the file; %s", kind, suggestType(kind))
		case known.Source == catalog.Kubernetes:
			v.addf(at, "%s is reported by Kubernetes itself, and two writers of one condition undo each other's changes; remove it", kind)
		case reporter[kind] != "":
			v.addf(at, "%s is already reported by %s; configure it for one of them", kind, reporter[kind])
		default:
			reporter[kind] = s.Name
		}
	}
}

// lookup finds a condition type in the catalog, or among the declared types.
func (s *Source) lookup(kind string) (catalog.Condition, bool) {
	if known, ok := catalog.Lookup(kind); ok {
		return known, true
	}
	for _, c := range s.Declared {
		if c.Type == kind {
			return c, true
		}
	}
	return catalog.Condition{}, false
}

// inverted returns whether a condition is True on a healthy node.
func (s *Source) inverted(kind string) bool {
	known, _ := s.lookup(kind)
	return known.Healthy == catalog.True
}

// suggestType returns a hint for an unknown condition type.
func suggestType(kind string) string {
	if near, ok := spelling.NearestCondition(kind); ok {
		return "did you mean " + near + "?"
	}
	return "docs/reference/conditions.md lists all types"
}

// isShared reports whether the source uses the shared socket.
func (s *Source) isShared() bool { return s.Socket == "" }

// indistinguishableFrom reports whether a client could match both sources.
func (s *Source) indistinguishableFrom(other *Source) bool {
	byUser := func(s *Source) bool { return s.isShared() && s.TokenFile == "" && (s.UID != nil || s.GID != nil) }
	apart := func(a, b *int) bool { return a != nil && b != nil && *a != *b }
	return byUser(s) && byUser(other) && !apart(s.UID, other.UID) && !apart(s.GID, other.GID)
}
