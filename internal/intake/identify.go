package intake

import (
	"crypto/sha256"
	"net/http"
	"strings"

	"github.com/resourcestack/autohealer/problem"
)

// credentials are what identifies a client.
type credentials struct {
	addr  listenAddr // on which it connected
	peer  *peer
	token string // empty if it sends none
}

// identify returns the source that a client is. It ignores the name in the status.
func identify(creds credentials, sources []*sourceState) (*sourceState, *problem.RefusedError) {
	sum := digest(sha256.Sum256([]byte(creds.token)))
	var found *sourceState
	for _, src := range sources {
		src.mu.Lock()
		if src.matches(creds, sum) {
			found = src
		}
		src.mu.Unlock()
	}
	if found != nil {
		return found, nil
	}
	rejection := reject(http.StatusUnauthorized, "", "configure the source in the agent, by its uid or gid, its token or a socket of its own", "the agent does not know you")
	switch {
	case creds.token != "":
		rejection.Problem = "the agent does not know this token"
		if creds.addr.owner != "" {
			rejection.Problem = "this is not the token of " + creds.addr.owner
		}
	case creds.addr.owner != "":
		rejection.Problem = "this socket is, or was, for the source " + creds.addr.owner + ", and this connection is not from it"
	case creds.peer == nil:
		rejection.Problem, rejection.Hint = "the agent cannot identify the process that connects", "send a token: Authorization: Bearer ..."
	}
	return nil, rejection
}

// matches reports whether credentials identify this source.
func (src *sourceState) matches(creds credentials, sum digest) bool {
	s := &src.source
	switch {
	case src.removed:
		return false
	case s.isShared() != (creds.addr.owner == ""), creds.addr.owner != "" && creds.addr != s.listenAddr():
		// A connection through a socket that is closed by now, or that belongs to another
		// source by now, no longer counts.
		return false
	case s.TokenFile != "" && !src.token.is(sum):
		return false
	case s.TokenFile == "" && s.isShared() && creds.token != "":
		return false // the client sends a token, so it must be known by it
	case s.UID == nil && s.GID == nil:
		return s.TokenFile != "" || creds.addr.owner != ""
	case creds.peer == nil:
		return false
	}
	return (s.UID == nil || *s.UID == creds.peer.uid) && (s.GID == nil || *s.GID == creds.peer.gid)
}

// bearerToken returns the token of a request, or an empty string.
func bearerToken(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
