package check

import "testing"

func TestWithoutSource(t *testing.T) {
	for text, want := range map[string]string{
		"read tcp 127.0.0.1:45678->127.0.0.1:10248: read: connection reset by peer": "read tcp 127.0.0.1:10248: read: connection reset by peer",
		"read udp [fd00::1]:999->[fd00::a]:53: i/o timeout":                         "read udp [fd00::a]:53: i/o timeout",
		"lookup a on 10.0.0.10:53: read udp 10.1.2.3:5->10.0.0.10:53: refused":      "lookup a on 10.0.0.10:53: read udp 10.0.0.10:53: refused",
		"read unix @->/run/docker.sock: EOF":                                        "read unix @->/run/docker.sock: EOF",
		"a->b":                                                                      "a->b",
	} {
		if got := withoutSource(text); got != want {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}
