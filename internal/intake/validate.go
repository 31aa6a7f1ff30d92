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

// maxClockSkew is how far in the future a time may be. Source and agent share a clock, but it
// may be set back between the two.
const maxClockSkew = 5 * time.Second

// validate checks a status against the configuration of its source and its earlier reports. It
// returns the findings of the status, with shortened messages.
func validate(status *statusRequest, source *Source, reported map[string]finding.Condition, now time.Time) (finding.Report, *problem.RefusedError) {
	switch {
	case status.Source == "":
		return finding.Report{}, missingField("source", "write the name of the source: "+source.Name)
	case status.Source != source.Name:
		return finding.Report{}, reject(http.StatusForbidden, "source", "write the name by which the agent knows you",
			"you are known as %s, not as %.80q", source.Name, status.Source)
	case len(status.Events) > problem.MaxEvents:
		return finding.Report{}, reject(http.StatusRequestEntityTooLarge, "events", fmt.Sprintf("send %d at most at once", problem.MaxEvents),
			"there are %d events", len(status.Events))
	}
	r := finding.Report{Source: source.Name}
	for i := range status.Conditions {
		c, rejection := validateCondition(&status.Conditions[i], source, r.Conditions, reported, now)
		if rejection != nil {
			return finding.Report{}, withIndex(rejection, "conditions", i)
		}
		r.Conditions = append(r.Conditions, c)
	}
	for i := range status.Events {
		e, rejection := validateEvent(&status.Events[i], r.Events, now)
		if rejection != nil {
			return finding.Report{}, withIndex(rejection, "events", i)
		}
		e.ID = finding.ID("event", source.Name, string(e.Severity), e.Time.Format(time.RFC3339Nano), e.Reason, e.Message)
		r.Events = append(r.Events, e)
	}
	return r, nil
}

// withIndex adds the list and index to the field of a rejection.
func withIndex(rejection *problem.RefusedError, list string, i int) *problem.RefusedError {
	rejection.Field = fmt.Sprintf("%s[%d].%s", list, i, rejection.Field)
	return rejection
}

func missingField(field, hint string) *problem.RefusedError {
	return reject(http.StatusBadRequest, field, hint, "it is missing")
}

// validateCondition checks a condition against those before it in the status, and against
// earlier reports.
func validateCondition(s *statusCondition, source *Source, before []finding.Condition, reported map[string]finding.Condition, now time.Time) (finding.Condition, *problem.RefusedError) {
	none := finding.Condition{}
	if rejection := validateType(s.Type, source); rejection != nil {
		return none, rejection
	}
	if slices.ContainsFunc(before, func(other finding.Condition) bool { return other.Type == s.Type }) {
		return none, reject(http.StatusUnprocessableEntity, "type", "send each once, as it is by now", "%s is there twice", s.Type)
	}
	c := finding.Condition{Type: s.Type, Inverted: source.inverted(s.Type), Reason: s.Reason, Message: problem.Cut(s.Message)}
	var rejection *problem.RefusedError
	if c.Status, rejection = validateStatus(s.Status); rejection != nil {
		return none, rejection
	}
	c.Status = c.Shown() // the source reports the status that the Node gets
	if c.Since, rejection = validateTime("transition", s.Transition, now); rejection != nil {
		return none, rejection
	}
	// An earlier report with a time in the future was sent before the clock was set back.
	if known, ok := reported[c.Type]; ok && c.Since.Before(known.Since) && !known.Since.After(now) {
		return none, reject(http.StatusConflict, "transition", "send the newest state, and when it began",
			"%s was already reported as of %s, and this is older", c.Type, known.Since.Format(time.RFC3339Nano))
	}
	return c, validateReason(s.Reason)
}

// validateStatus returns the status that a source reports.
func validateStatus(written any) (catalog.Status, *problem.RefusedError) {
	const right = `write true, false or "Unknown"`
	switch written {
	case nil:
		return "", missingField("status", right)
	case true, "True":
		return catalog.True, nil
	case false, "False":
		return catalog.False, nil
	case "Unknown":
		return catalog.Unknown, nil
	}
	return "", reject(http.StatusBadRequest, "status", right, "%.80q is no status", fmt.Sprint(written))
}

func validateType(kind string, source *Source) *problem.RefusedError {
	if kind == "" {
		return missingField("type", "write the type of the condition")
	}
	if slices.Contains(source.Conditions, kind) {
		return nil
	}
	known, ok := source.lookup(kind)
	switch {
	case !ok:
		return reject(http.StatusUnprocessableEntity, "type", suggestType(kind), "%.80q is not in the catalogue", kind)
	case known.Source == catalog.Kubernetes:
		return reject(http.StatusForbidden, "type", "report a condition of your own", "%s is reported by Kubernetes itself", kind)
	}
	return reject(http.StatusForbidden, "type", "name it in the agent's configuration of this source", "%s is not kept by %s", kind, source.Name)
}

// validateEvent checks an event against those before it in the status.
func validateEvent(s *statusEvent, before []finding.Event, now time.Time) (finding.Event, *problem.RefusedError) {
	e := finding.Event{Severity: finding.Severity(s.Severity), Reason: s.Reason, Message: problem.Cut(s.Message)}
	switch problem.Severity(s.Severity) {
	case problem.Info, problem.Warn:
	case "":
		return e, missingField("severity", `write "info" or "warn"`)
	default:
		return e, reject(http.StatusUnprocessableEntity, "severity", `write "info" or "warn"`, "%.80q is no severity", s.Severity)
	}
	var rejection *problem.RefusedError
	if e.Time, rejection = validateTime("timestamp", s.Timestamp, now); rejection != nil {
		return e, rejection
	}
	if n := len(before); n > 0 && e.Time.Before(before[n-1].Time) {
		return e, reject(http.StatusConflict, "timestamp", "send events from the oldest to the newest", "it is before that of the event before it")
	}
	return e, validateReason(s.Reason)
}

func validateTime(field, text string, now time.Time) (time.Time, *problem.RefusedError) {
	const right = "write it as 2026-11-15T12:00:00.123456789Z"
	if text == "" {
		return time.Time{}, missingField(field, right)
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	switch {
	case err != nil:
		return time.Time{}, reject(http.StatusBadRequest, field, right, "%.80q is no time", text)
	case at.Unix() <= 0:
		return time.Time{}, reject(http.StatusBadRequest, field, right, "%s is a time that was not set", text)
	case at.After(now.Add(maxClockSkew)):
		return time.Time{}, reject(http.StatusTooEarly, field, "look at the clock", "%s is in the future: here it is %s", text, now.UTC().Format(time.RFC3339Nano))
	}
	return at.UTC(), nil
}

func validateReason(reason string) *problem.RefusedError {
	const right = "write CamelCase like BadBlocksFound"
	switch {
	case reason == "":
		return missingField("reason", right)
	case len(reason) > problem.MaxReason:
		return reject(http.StatusUnprocessableEntity, "reason", right, "it has %d letters, and %d are the most", len(reason), problem.MaxReason)
	case !problem.IsReason(reason):
		return reject(http.StatusUnprocessableEntity, "reason", right, "%q is no CamelCase", reason)
	}
	return nil
}
