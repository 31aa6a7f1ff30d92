package intake

import (
	"strings"
	"testing"
	"time"
)

func TestWhatCannotBeMeantIsNotApplied(t *testing.T) {
	id := func(n int) *int { return &n }
	with := func(change func(*Source)) Source {
		s := source("b", disk)
		change(&s)
		return s
	}
	a := source("a", "NTPProblem")
	for _, test := range []struct {
		setup Setup
		want  []string
	}{
		{Setup{Sources: []Source{a, source("b", disk)}}, nil},
		{Setup{Socket: "/s", TCP: "[::1]:80", Sources: []Source{with(func(s *Source) { s.Socket, s.TokenFile = "", "/t" })}}, nil},
		{Setup{Socket: "/s", TCP: "[::1]:80", Sources: []Source{with(func(s *Source) { s.TokenFile = "/t" })}},
			[]string{"tcp: no source can be known there; give one a tokenFile and no socket of its own, or take it away"}},
		{Setup{TCP: "127.0.0.1:0"}, []string{"tcp: nobody would know which port it is; write one such as 127.0.0.1:20258"}},
		{Setup{Socket: "/run/"}, []string{`socket: "/run/" is a folder; write the path of a socket in it`}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Socket = "/run//a.sock" })}},
			[]string{"sources[1].socket: /run//a.sock is that of a already; write one that nobody else is given"}},
		{Setup{Sources: []Source{with(func(s *Source) { s.TokenFile = "t" })}},
			[]string{`sources[0].tokenFile: "t" does not begin at the root; write the whole path`}},
		{Setup{Socket: "/s", Sources: []Source{with(func(s *Source) { s.Socket, s.TokenFile, s.Name, s.Conditions = "", "/./t", "c", nil }), with(func(s *Source) { s.Socket, s.TokenFile = "", "/t" })}},
			[]string{"sources[1].tokenFile: it is that of c already; give each its own"}},
		{Setup{TCP: "0.0.0.0:80"}, []string{"tcp: 0.0.0.0:80 can be reached from other machines; write 127.0.0.1 or [::1]"}},
		{Setup{TCP: ":80"}, []string{`tcp: ":80" is no address with a port; write one such as 127.0.0.1:20258`}},
		{Setup{TCP: "localhost:80"}, []string{`tcp: "localhost:80" is no address with a port; write one such as 127.0.0.1:20258`}},
		{Setup{Socket: "s"}, []string{`socket: "s" does not begin at the root; write the whole path`}},
		{Setup{Socket: "/" + strings.Repeat("s", 107)}, []string{"socket: the path has 108 letters, and the kernel takes 107; write a shorter one"}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Name = "B b" })}},
			[]string{`sources[1].name: "B b" is no name; write small letters, digits, dots and dashes, 63 at most`}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Name = "a" })}}, []string{"sources[1].name: a is there already; leave one of them"}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Socket = a.Socket })}},
			[]string{"sources[1].socket: /run/a.sock is that of a already; write one that nobody else is given"}},
		{Setup{Socket: a.Socket, Sources: []Source{a}}, []string{"sources[0].socket: /run/a.sock is that of all already; write one that nobody else is given"}},
		{Setup{Socket: "/s", Sources: []Source{a, with(func(s *Source) { s.Socket = "" })}},
			[]string{"sources[1]: there is nothing to know b by; write its uid or gid, a tokenFile, or a socket of its own"}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Socket, s.UID = "", id(1) })}},
			[]string{"sources[1].socket: there is neither this nor one for all; write one of them"}},
		{Setup{Socket: "/s", Sources: []Source{with(func(s *Source) { s.Socket, s.UID, s.Name, s.Conditions = "", id(1), "c", nil }), with(func(s *Source) { s.Socket, s.UID, s.GID = "", id(1), id(2) })}},
			[]string{"sources[1]: b cannot be told from c, which is known by the same uid and gid; give one of them a tokenFile or a socket of its own"}},
		{Setup{Socket: "/s", Sources: []Source{with(func(s *Source) { s.Socket, s.TokenFile, s.Name, s.Conditions = "", "/t", "c", nil }), with(func(s *Source) { s.Socket, s.TokenFile = "", "/t" })}},
			[]string{"sources[1].tokenFile: it is that of c already; give each its own"}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Conditions = []string{"NTPProblem", "Ready", "DiskBadBlok", "Whatever", disk, disk} })}}, []string{
			"sources[1].conditions[0]: NTPProblem is kept by a already; leave it to one of them",
			"sources[1].conditions[1]: Ready is reported by Kubernetes itself, and two who report one condition undo each other's work; take it away",
			`sources[1].conditions[2]: "DiskBadBlok" is not in the catalogue; did you mean DiskBadBlock?`,
			`sources[1].conditions[3]: "Whatever" is not in the catalogue; docs/conditions.md lists all that are`,
			"sources[1].conditions[5]: DiskBadBlock is kept by b already; leave it to one of them",
		}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Silence = time.Second })}}, []string{"sources[1].silence: 1s is too short; write at least 5s"}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Rate = 0 })}}, []string{"sources[1].rate: 0 is too small; write at least 1"}},
	} {
		err, want := test.setup.Validate(), strings.Join(test.want, "\n")
		if got := strings.TrimPrefix(errorText(err), "\n"); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if err == nil {
			continue
		}
		s := newStage(t)
		s.begin("", t.Output()).open = s.listen
		if s.in.Apply(test.setup) == nil || len(s.paths) > 0 || len(s.in.desks) > 0 {
			t.Errorf("it is applied in spite of %v", err)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
