package intake

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/catalog"
	"github.com/resourcestack/autohealer/internal/finding"
	"github.com/resourcestack/autohealer/problem"
)

// ahead is how far a stamp may be in the future: a source has the clock of the agent, but
// somebody may set it between the two.
const ahead = 5 * time.Second

// judge holds a statement against what its source may say, and what it has said. What it
// returns is what the statement says, with messages cut.
func judge(s *statement, source *Source, told map[string]finding.Condition, now time.Time) (finding.Report, *problem.RefusedError) {
	switch {
	case s.Source == "":
		return finding.Report{}, missing("source", "write the name of the source: "+source.Name)
	case s.Source != source.Name:
		return finding.Report{}, refuse(http.StatusForbidden, "source", "write the name by which the agent knows you",
			"you are known as %s, not as %.80q", source.Name, s.Source)
	case len(s.Events) > problem.MaxEvents:
		return finding.Report{}, refuse(http.StatusRequestEntityTooLarge, "events", fmt.Sprintf("send %d at most at once", problem.MaxEvents),
			"there are %d events", len(s.Events))
	}
	r := finding.Report{Source: source.Name}
	for i := range s.Conditions {
		c, refusal := judgeCondition(&s.Conditions[i], source, r.Conditions, told, now)
		if refusal != nil {
			return finding.Report{}, within(refusal, "conditions", i)
		}
		r.Conditions = append(r.Conditions, c)
	}
	for i := range s.Events {
		e, refusal := judgeEvent(&s.Events[i], r.Events, now)
		if refusal != nil {
			return finding.Report{}, within(refusal, "events", i)
		}
		e.ID = identity("event", source.Name, string(e.Severity), e.Time.Format(time.RFC3339Nano), e.Reason, e.Message)
		r.Events = append(r.Events, e)
	}
	return r, nil
}

// within says in which of a list the field is that is refused.
func within(refusal *problem.RefusedError, list string, i int) *problem.RefusedError {
	refusal.Field = fmt.Sprintf("%s[%d].%s", list, i, refusal.Field)
	return refusal
}

func missing(field, hint string) *problem.RefusedError {
	return refuse(http.StatusBadRequest, field, hint, "it is missing")
}

// judgeCondition holds a condition against those before it in the statement, and against
// what was told.
func judgeCondition(s *conditionStatement, source *Source, before []finding.Condition, told map[string]finding.Condition, now time.Time) (finding.Condition, *problem.RefusedError) {
	none := finding.Condition{}
	if refusal := judgeType(s.Type, source); refusal != nil {
		return none, refusal
	}
	if slices.ContainsFunc(before, func(other finding.Condition) bool { return other.Type == s.Type }) {
		return none, refuse(http.StatusUnprocessableEntity, "type", "send each once, as it is by now", "%s is there twice", s.Type)
	}
	if s.Status == nil {
		return none, missing("status", "write true if the node has the problem, and else false")
	}
	c := finding.Condition{Type: s.Type, Status: catalog.False, Reason: s.Reason, Message: problem.Cut(s.Message)}
	if *s.Status {
		c.Status = catalog.True
	}
	var refusal *problem.RefusedError
	if c.Since, refusal = judgeTime("transition", s.Transition, now); refusal != nil {
		return none, refusal
	}
	// What was told as of a time that is still to come was so before the clock was set back.
	if known, ok := told[c.Type]; ok && c.Since.Before(known.Since) && !known.Since.After(now) {
		return none, refuse(http.StatusConflict, "transition", "send the newest state, and when it began",
			"%s has been told as of %s already, and this is older", c.Type, known.Since.Format(time.RFC3339Nano))
	}
	return c, judgeReason(s.Reason)
}

func judgeType(kind string, source *Source) *problem.RefusedError {
	if kind == "" {
		return missing("type", "write the type of the condition")
	}
	if slices.Contains(source.Conditions, kind) {
		return nil
	}
	known, ok := catalog.Lookup(kind)
	switch {
	case !ok:
		return refuse(http.StatusUnprocessableEntity, "type", meant(kind), "%.80q is not in the catalogue", kind)
	case known.Source == catalog.Kubernetes:
		return refuse(http.StatusForbidden, "type", "report a condition of your own", "%s is reported by Kubernetes itself", kind)
	}
	return refuse(http.StatusForbidden, "type", "name it in the agent's configuration of this source", "%s is not kept by %s", kind, source.Name)
}

// judgeEvent holds an event against those before it in the statement.
func judgeEvent(s *eventStatement, before []finding.Event, now time.Time) (finding.Event, *problem.RefusedError) {
	e := finding.Event{Severity: finding.Severity(s.Severity), Reason: s.Reason, Message: problem.Cut(s.Message)}
	switch problem.Severity(s.Severity) {
	case problem.Info, problem.Warn:
	case "":
		return e, missing("severity", `write "info" or "warn"`)
	default:
		return e, refuse(http.StatusUnprocessableEntity, "severity", `write "info" or "warn"`, "%.80q is no severity", s.Severity)
	}
	var refusal *problem.RefusedError
	if e.Time, refusal = judgeTime("timestamp", s.Timestamp, now); refusal != nil {
		return e, refusal
	}
	if n := len(before); n > 0 && e.Time.Before(before[n-1].Time) {
		return e, refuse(http.StatusConflict, "timestamp", "send events from the oldest to the newest", "it is before that of the event before it")
	}
	return e, judgeReason(s.Reason)
}

func judgeTime(field, text string, now time.Time) (time.Time, *problem.RefusedError) {
	const right = "write it as 2026-11-15T12:00:00.123456789Z"
	if text == "" {
		return time.Time{}, missing(field, right)
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	switch {
	case err != nil:
		return time.Time{}, refuse(http.StatusBadRequest, field, right, "%.80q is no time", text)
	case at.Unix() <= 0:
		return time.Time{}, refuse(http.StatusBadRequest, field, right, "%s is a time that was not set", text)
	case at.After(now.Add(ahead)):
		return time.Time{}, refuse(http.StatusTooEarly, field, "look at the clock", "%s is in the future: here it is %s", text, now.UTC().Format(time.RFC3339Nano))
	}
	return at.UTC(), nil
}

func judgeReason(reason string) *problem.RefusedError {
	const right = "write CamelCase such as BadBlocksFound"
	switch {
	case reason == "":
		return missing("reason", right)
	case len(reason) > problem.MaxReason:
		return refuse(http.StatusUnprocessableEntity, "reason", right, "it has %d letters, and %d are the most", len(reason), problem.MaxReason)
	case !problem.IsReason(reason):
		return refuse(http.StatusUnprocessableEntity, "reason", right, "%q is no CamelCase", reason)
	}
	return nil
}
