package dialect

import (
	"errors"
	"time"

	"github.com/resourcestack/autohealer/internal/policykind"
	"github.com/resourcestack/autohealer/internal/triage"
)

// fields parses the fields of a policy and keeps the first error.
type fields struct {
	err error
}

func (f *fields) fail(path, value, problem string) {
	if f.err == nil {
		f.err = &triage.FieldError{Field: path, Value: value, Problem: problem}
	}
}

// addError records the error of a parser under the path that the user knows.
func (f *fields) addError(path string, err error) {
	var bad *triage.FieldError
	switch {
	case err == nil:
	case errors.As(err, &bad):
		f.fail(path, bad.Value, bad.Problem)
	default:
		f.fail(path, "", err.Error())
	}
}

func (f *fields) text(path, value, problem string) string {
	if value == "" {
		f.fail(path, value, problem)
	}
	return value
}

func (f *fields) duration(path, value string) time.Duration {
	d, err := triage.ParseDuration(value)
	f.addError(path, err)
	return d
}

// never is the toleration that has no end.
const never = "Never"

// toleration parses a duration, or Never.
func (f *fields) toleration(path, value string) time.Duration {
	if value == never {
		return triage.Never
	}
	d, err := triage.ParseDuration(value)
	if err != nil {
		f.fail(path, value, "want a duration like 90s, 5m or 1h30m that is not negative, or Never")
	}
	return d
}

func (f *fields) effect(path, value string) triage.Effect {
	effect, err := triage.ParseEffect(value)
	f.addError(path, err)
	return effect
}

// status parses the status of a condition in a policy. Missing is not allowed: only the
// ready timeout treats an unreported condition as unhealthy, and it does not call this
// method.
func (f *fields) status(path, value string) triage.Status {
	status, err := triage.ParseStatus(value)
	if err != nil || status == triage.Missing {
		f.fail(path, value, "want True, False or Unknown")
	}
	return status
}

// limit parses a limit that is rounded down, but to at least one.
func (f *fields) limit(path, value string) *triage.Limit {
	limit, err := triage.ParseLimit(value)
	f.addError(path, err)
	return &limit
}

// rule returns the compiled rule with the precedence of its kind, or the first error.
func (f *fields) rule(r triage.Rule) (triage.Rule, error) {
	r.Precedence = policykind.Precedence(r.ID.Kind)
	if f.err == nil {
		f.err = r.Validate()
	}
	if f.err != nil {
		return triage.Rule{}, f.err
	}
	return r, nil
}

// orDefault returns the value, or the default if the value is empty.
func orDefault(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}
