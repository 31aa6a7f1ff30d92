package intake

import (
	"crypto/sha256"
	"net/http"
	"strings"

	"github.com/resourcestack/autohealer/problem"
)

// claim is what a caller shows of itself.
type claim struct {
	at    doorway // by which it came in
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
		if c.at.own != "" {
			refusal.Problem = "this is not the token of " + c.at.own
		}
	case c.at.own != "":
		refusal.Problem = "this is the socket of " + c.at.own + ", and you are not; or it was, and is no longer"
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
	case s.isShared() != (c.at.own == ""), c.at.own != "" && c.at != s.doorway():
		// Also if it was his: whoever has come in through a socket that is closed, or that
		// is given to others by now, has no right to it any more.
		return false
	case s.TokenFile != "" && !d.token.is(sum):
		return false
	case s.TokenFile == "" && s.isShared() && c.token != "":
		return false // it wants to be known by its token, and is not
	case s.UID == nil && s.GID == nil:
		return s.TokenFile != "" || c.at.own != ""
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
