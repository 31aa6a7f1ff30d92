package triage

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limit is a number or a percentage of nodes.
type Limit struct {
	Number  int
	Percent bool
	// RoundUp rounds a percentage up to whole nodes. Otherwise it is rounded down, but to at
	// least one unless it is 0%. So a small pool is not blocked for ever.
	RoundUp bool
	// Healthy makes the limit a minimum of healthy nodes.
	Healthy bool
	// FewNumber replaces the percentage Number if there are at most Few nodes, because a small
	// percentage of few nodes is a single node. It is not smaller than Number, so that one more
	// node raises the limit by at most one.
	Few, FewNumber int
}

// ParseLimit parses a number like "3" or a percentage like "49%".
func ParseLimit(s string) (Limit, error) {
	digits, percent := strings.CutSuffix(s, "%")
	bad := func(problem string) (Limit, error) {
		return Limit{}, &FieldError{Value: s, Problem: problem}
	}
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return bad("want a number of nodes like 3 or a percentage like 49%")
	}
	number, err := strconv.ParseInt(digits, 10, 32)
	switch {
	case err != nil:
		return bad("too large")
	case percent && number > 100:
		return bad("a share cannot be more than 100%")
	}
	return Limit{Number: int(number), Percent: percent}, nil
}

func (l Limit) String() string {
	s := strconv.Itoa(l.Number)
	if l.Percent {
		s += "%"
	}
	return s
}

// isAll says that the limit is 100%.
func (l Limit) isAll() bool { return l.Percent && l.Number == 100 && !l.Healthy && l.Few == 0 }

// Of returns how many of the selected nodes may be unhealthy or in treatment.
func (l Limit) Of(selected int) int {
	n := l.Number
	if l.Percent {
		percent := l.Number
		if l.Few > 0 && selected <= l.Few {
			percent = l.FewNumber
		}
		n = selected * percent
		if l.RoundUp {
			n = (n + 99) / 100
		} else {
			n /= 100
			if n == 0 && percent > 0 {
				n = 1
			}
		}
	}
	if l.Healthy {
		n = max(0, selected-n)
	}
	return n
}

func (l *Limit) validate() error {
	switch {
	case l == nil:
		return nil
	case l.Number < 0:
		return &FieldError{Value: l.String(), Problem: "a limit cannot be negative"}
	case l.Percent && l.Number > 100:
		return &FieldError{Value: l.String(), Problem: "a share cannot be more than 100%"}
	case l.Few != 0 && (l.Few < 0 || !l.Percent || l.Healthy || l.FewNumber < l.Number || l.FewNumber > 100):
		return &FieldError{Value: l.String(), Problem: fmt.Sprintf("%d%% of at most %d nodes: only a percentage of unhealthy nodes can be larger for few nodes", l.FewNumber, l.Few)}
	}
	return nil
}

// ParseDuration parses a duration that is not negative, for example 300s or 1h30m.
func ParseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, &FieldError{Value: s, Problem: "want a duration like 300s, 5m or 1h30m"}
	}
	if d < 0 {
		return 0, &FieldError{Value: s, Problem: "a duration cannot be negative"}
	}
	return d, nil
}
