package intake

import (
	"crypto/sha256"
	"net/http"
	"strings"

	"github.com/resourcestack/autohealer/problem"
)

// claim is what a caller shows of itself.
type claim struct {
	own   string // the source at whose own socket it is
	peer  *peer
	token string // empty if it has none
}

// identify finds the source that a caller is. Nothing that it says counts beside what it
// shows.
func identify(c claim, desks []*desk) (*desk, *problem.RefusedError) {
	sum := digest(sha256.Sum256([]byte(c.token)))
	var found *desk
	for _, d := range desks {
		d.mu.Lock()
		if d.isOf(c, sum) {
			found = d
		}
		d.mu.Unlock()
	}
	if found != nil {
		return found, nil
	}
	refusal := refuse(http.StatusUnauthorized, "", "configure the source in the agent, by its uid or gid, its token or a socket of its own", "the agent does not know you")
	switch {
	case c.token != "":
		refusal.Problem = "the agent does not know this token"
		if c.own != "" {
			refusal.Problem = "this is not the token of " + c.own
		}
	case c.own != "":
		refusal.Problem = "this is the socket of " + c.own + ", and you are not"
	case c.peer == nil:
		refusal.Problem, refusal.Hint = "the agent cannot see who you are", "send a token: Authorization: Bearer ..."
	}
	return nil, refusal
}

// isOf says whether a claim is good for this desk.
func (d *desk) isOf(c claim, sum digest) bool {
	s := &d.source
	switch {
	case d.closed:
		return false
	case s.isShared() != (c.own == ""), c.own != "" && c.own != s.Name: // or was, under another setup
		return false
	case s.TokenFile != "" && !d.token.is(sum):
		return false
	case s.TokenFile == "" && s.isShared() && c.token != "":
		return false // it wants to be known by its token, and is not
	case s.UID == nil && s.GID == nil:
		return s.TokenFile != "" || c.own != ""
	case c.peer == nil:
		return false
	}
	return (s.UID == nil || *s.UID == c.peer.uid) && (s.GID == nil || *s.GID == c.peer.gid)
}

// bearer returns the token of a request.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
