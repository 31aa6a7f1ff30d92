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

// statusRequest is the body of a status request. Times are strings, so that a rejection can
// name the field of an invalid time.
type statusRequest struct {
	Source     string            `json:"source"`
	Events     []statusEvent     `json:"events"`
	Conditions []statusCondition `json:"conditions"`
}

type statusEvent struct {
	Severity  string `json:"severity"`
	Timestamp string `json:"timestamp"`
	Reason    string `json:"reason"`
	Message   string `json:"message"`
}

type statusCondition struct {
	Type       string `json:"type"`
	Status     any    `json:"status"` // true, false or a text
	Transition string `json:"transition"`
	Reason     string `json:"reason"`
	Message    string `json:"message"`
}

// reject returns a rejection.
func reject(code int, field, hint, format string, args ...any) *problem.RefusedError {
	return &problem.RefusedError{Code: code, Field: field, Hint: hint, Problem: fmt.Sprintf(format, args...)}
}

// parse decodes a body. It ignores unknown fields, because a client may be newer than the
// agent.
func parse(body []byte) (statusRequest, *problem.RefusedError) {
	var status statusRequest
	err := json.Unmarshal(body, &status)
	if err == nil {
		return status, nil
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return statusRequest{}, reject(http.StatusBadRequest, fieldAt(body, wrong.Offset), "docs/reference/problem-reports.md shows a whole status",
			"%s is of the wrong type", wrong.Value)
	}
	hint := "write one object, as docs/reference/problem-reports.md shows it"
	if broken, ok := errors.AsType[*json.SyntaxError](err); ok && len(body) > 0 {
		return statusRequest{}, reject(http.StatusBadRequest, fieldAt(body, broken.Offset), hint, "this is no JSON, at byte %d: %s", broken.Offset, broken.Error())
	}
	return statusRequest{}, reject(http.StatusBadRequest, "", hint, "this is no JSON: %v", err)
}

// fieldAt returns the path of the first value that does not end before an offset, for example
// conditions[1].reason. It is empty outside of any field.
func fieldAt(body []byte, offset int64) string {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var within []pathElement
	for {
		token, err := decoder.Token()
		if err != nil {
			return fieldPath(within)
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
				here.index++
			case !here.named:
				here.name, _ = token.(string)
				here.named = true
				continue
			}
		}
		if decoder.InputOffset() >= offset {
			return fieldPath(within)
		}
		switch {
		case delim == '{' || delim == '[':
			within = append(within, pathElement{list: delim == '[', index: -1})
		case len(within) > 0:
			within[len(within)-1].named = false
		}
	}
}

// pathElement is an object or a list, and the position in it.
type pathElement struct {
	list  bool
	index int
	name  string
	named bool // the name has been read, the value has not
}

// A status has no deeper fields and no longer names. Longer paths are shortened.
const maxDepth, maxFieldName = 3, 40

// fieldPath joins path elements, outermost first.
func fieldPath(within []pathElement) string {
	text := ""
	for i, s := range within[:min(len(within), maxDepth)] {
		s.name = strings.ToValidUTF8(s.name[:min(len(s.name), maxFieldName)], "")
		switch {
		case s.list && s.index >= 0:
			text += "[" + strconv.Itoa(s.index) + "]"
		case !s.list && s.named && i > 0:
			text += "." + s.name
		case !s.list && s.named:
			text += s.name
		}
	}
	return text
}
