package dialect

import (
	"errors"
	"time"

	"github.com/resourcestack/autohealer/internal/triage"
)

// fields reads one field after the other and keeps the first error.
type fields struct {
	err error
}

func (f *fields) refuse(path, value, problem string) {
	if f.err == nil {
		f.err = &triage.FieldError{Field: path, Value: value, Problem: problem}
	}
}

// at keeps the error of a parser, under the path by which the author knows the
// field.
func (f *fields) at(path string, err error) {
	var bad *triage.FieldError
	switch {
	case err == nil:
	case errors.As(err, &bad):
		f.refuse(path, bad.Value, bad.Problem)
	default:
		f.refuse(path, "", err.Error())
	}
}

func (f *fields) text(path, value, problem string) string {
	if value == "" {
		f.refuse(path, value, problem)
	}
	return value
}

func (f *fields) duration(path, value string) time.Duration {
	d, err := triage.ParseDuration(value)
	f.at(path, err)
	return d
}

func (f *fields) effect(path, value string) triage.Effect {
	effect, err := triage.ParseEffect(value)
	f.at(path, err)
	return effect
}

// status reads a status that a condition can be written with. Missing is none
// of them: a condition that nobody reports is not a sign of sickness, except to
// the ready timeout, which is not asked.
func (f *fields) status(path, value string) triage.Status {
	status, err := triage.ParseStatus(value)
	if err != nil || status == triage.Missing {
		f.refuse(path, value, "want True, False or Unknown")
	}
	return status
}

// limit reads a limit that is rounded down, to no less than one.
func (f *fields) limit(path, value string) *triage.Limit {
	limit, err := triage.ParseLimit(value)
	f.at(path, err)
	return &limit
}

// rule returns the compiled rule, or the first error.
func (f *fields) rule(r triage.Rule) (triage.Rule, error) {
	if f.err == nil {
		f.err = r.Validate()
	}
	if f.err != nil {
		return triage.Rule{}, f.err
	}
	return r, nil
}

// or is the value, or what it means when nothing was written.
func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}
