package intake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/resourcestack/autohealer/problem"
)

// statement is a status as it is on the wire. Its times are texts, because of one that
// is none it would not be known which it was.
type statement struct {
	Source     string               `json:"source"`
	Events     []eventStatement     `json:"events"`
	Conditions []conditionStatement `json:"conditions"`
}

type eventStatement struct {
	Severity  string `json:"severity"`
	Timestamp string `json:"timestamp"`
	Reason    string `json:"reason"`
	Message   string `json:"message"`
}

type conditionStatement struct {
	Type       string `json:"type"`
	Status     *bool  `json:"status"` // which may be missing
	Transition string `json:"transition"`
	Reason     string `json:"reason"`
	Message    string `json:"message"`
}

// refuse makes an answer.
func refuse(code int, field, hint, format string, args ...any) *problem.RefusedError {
	return &problem.RefusedError{Code: code, Field: field, Hint: hint, Problem: fmt.Sprintf(format, args...)}
}

// parse reads a body as JSON. Fields that nobody knows are passed over: a client may be
// newer than the agent.
func parse(body []byte) (statement, *problem.RefusedError) {
	var s statement
	err := json.Unmarshal(body, &s)
	if err == nil {
		return s, nil
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return statement{}, refuse(http.StatusBadRequest, place(body, wrong.Offset), "docs/problem-reports.md shows a whole status",
			"%s is of the wrong type", wrong.Value)
	}
	hint := "write one object, as docs/problem-reports.md shows it"
	if broken, ok := errors.AsType[*json.SyntaxError](err); ok && len(body) > 0 {
		return statement{}, refuse(http.StatusBadRequest, place(body, broken.Offset), hint, "this is no JSON, at byte %d: %s", broken.Offset, broken.Error())
	}
	return statement{}, refuse(http.StatusBadRequest, "", hint, "this is no JSON: %v", err)
}

// place says in which field of a text the first value lies that does not end before an
// offset: conditions[1].reason. It is empty if that is in none.
func place(body []byte, offset int64) string {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var within []step
	for {
		token, err := decoder.Token()
		if err != nil {
			return path(within)
		}
		delim, _ := token.(json.Delim)
		if top := len(within) - 1; top >= 0 {
			here := &within[top]
			switch {
			case delim == '}' || delim == ']':
				if within = within[:top]; top > 0 {
					within[top-1].named = false
				}
				continue
			case here.list:
				here.place++
			case !here.named:
				here.name, _ = token.(string)
				here.named = true
				continue
			}
		}
		if decoder.InputOffset() >= offset {
			return path(within)
		}
		switch {
		case delim == '{' || delim == '[':
			within = append(within, step{list: delim == '[', place: -1})
		case len(within) > 0:
			within[len(within)-1].named = false
		}
	}
}

// step is an object or a list, and the place in it.
type step struct {
	list  bool
	place int
	name  string
	named bool // the name has been read, its value has not
}

// A status has no deeper fields, nor longer names. Others are not told whole.
const deepest, longestName = 3, 40

// path writes steps from the outermost to the innermost.
func path(within []step) string {
	text := ""
	for i, s := range within[:min(len(within), deepest)] {
		s.name = strings.ToValidUTF8(s.name[:min(len(s.name), longestName)], "")
		switch {
		case s.list && s.place >= 0:
			text += "[" + strconv.Itoa(s.place) + "]"
		case !s.list && s.named && i > 0:
			text += "." + s.name
		case !s.list && s.named:
			text += s.name
		}
	}
	return text
}
