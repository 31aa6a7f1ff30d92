package intake

import (
	"strings"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/format/golden"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestInvalidSetupIsNotApplied(t *testing.T) {
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
			[]string{"tcp: no source can authenticate there; give a source a tokenFile and no socket, or remove this address"}},
		{Setup{TCP: "127.0.0.1:0"}, []string{"tcp: the port must not be 0; write one like 127.0.0.1:20258"}},
		{Setup{Socket: "/run/"}, []string{`socket: "/run/" is a directory; write the path of a socket in it`}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Socket = "/run//a.sock" })}},
			[]string{"sources[1].socket: /run//a.sock is already used by a; write another path"}},
		{Setup{Sources: []Source{with(func(s *Source) { s.TokenFile = "t" })}},
			[]string{`sources[0].tokenFile: "t" is not an absolute path; write the whole path`}},
		{Setup{Socket: "/s", Sources: []Source{with(func(s *Source) { s.Socket, s.TokenFile, s.Name, s.Conditions = "", "/./t", "c", nil }), with(func(s *Source) { s.Socket, s.TokenFile = "", "/t" })}},
			[]string{"sources[1].tokenFile: c already uses this file; give each source its own"}},
		{Setup{TCP: "0.0.0.0:80"}, []string{"tcp: 0.0.0.0:80 can be reached from other machines; write 127.0.0.1 or [::1]"}},
		{Setup{TCP: ":80"}, []string{`tcp: ":80" is not an address with a port; write one like 127.0.0.1:20258`}},
		{Setup{TCP: "localhost:80"}, []string{`tcp: "localhost:80" is not an address with a port; write one like 127.0.0.1:20258`}},
		{Setup{Socket: "s"}, []string{`socket: "s" is not an absolute path; write the whole path`}},
		{Setup{Socket: "/" + strings.Repeat("s", 107)}, []string{"socket: the path has 108 bytes, and the kernel allows 107; write a shorter one"}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Name = "B b" })}},
			[]string{`sources[1].name: "B b" is not a valid name; use at most 63 lower-case letters, digits, dots and dashes`}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Name = "a" })}}, []string{"sources[1].name: a exists already; remove one of them"}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Socket = a.Socket })}},
			[]string{"sources[1].socket: /run/a.sock is already used by a; write another path"}},
		{Setup{Socket: a.Socket, Sources: []Source{a}}, []string{"sources[0].socket: /run/a.sock is already used by all sources; write another path"}},
		{Setup{Socket: "/s", Sources: []Source{a, with(func(s *Source) { s.Socket = "" })}},
			[]string{"sources[1]: b cannot be identified; set its uid or gid, a tokenFile, or its own socket"}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Socket, s.UID = "", id(1) })}},
			[]string{"sources[1].socket: the source has no socket and there is no shared one; set one of them"}},
		{Setup{Socket: "/s", Sources: []Source{with(func(s *Source) { s.Socket, s.UID, s.Name, s.Conditions = "", id(1), "c", nil }), with(func(s *Source) { s.Socket, s.UID, s.GID = "", id(1), id(2) })}},
			[]string{"sources[1]: b cannot be distinguished from c, which has the same uid and gid; give one of them a tokenFile or its own socket"}},
		{Setup{Socket: "/s", Sources: []Source{with(func(s *Source) { s.Socket, s.TokenFile, s.Name, s.Conditions = "", "/t", "c", nil }), with(func(s *Source) { s.Socket, s.TokenFile = "", "/t" })}},
			[]string{"sources[1].tokenFile: c already uses this file; give each source its own"}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Conditions = []string{"NTPProblem", "Ready", "DiskBadBlok", "Whatever", disk, disk} })}}, []string{
			"sources[1].conditions[0]: NTPProblem is already reported by a; configure it for one of them",
			"sources[1].conditions[1]: Ready is reported by Kubernetes itself, and two writers of one condition undo each other's changes; remove it",
			`sources[1].conditions[2]: "DiskBadBlok" is neither in the catalogue nor declared in the conditions of the file; did you mean DiskBadBlock?`,
			`sources[1].conditions[3]: "Whatever" is neither in the catalogue nor declared in the conditions of the file; docs/reference/conditions.md lists all types`,
			"sources[1].conditions[5]: DiskBadBlock is already reported by b; configure it for one of them",
		}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Silence = time.Second })}}, []string{"sources[1].silence: 1s is too short; write at least 5s"}},
		{Setup{Sources: []Source{a, with(func(s *Source) { s.Rate = 0 })}}, []string{"sources[1].rate: 0 is too small; write at least 1"}},
	} {
		err, want := test.setup.Validate(), strings.Join(test.want, "\n")
		testkit.Same(t, strings.TrimPrefix(errorText(err), "\n"), want, "the error")
		if err == nil {
			continue
		}
		s := newFixture(t)
		s.begin("", t.Output()).open = s.listen
		testkit.Check(t, s.in.Apply(test.setup) != nil && len(s.paths) == 0 && len(s.in.sources) == 0, "it is applied in spite of %v", err)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestExposedWarnsOfSharedDirectories(t *testing.T) {
	at := func(name, path string) Source { return Source{Name: name, Socket: path} }
	const repairs = "/run/autohealer/repairs"
	warning := func(field, folder, held, instead string) string {
		return field + ": a container that mounts its folder " + folder + " also gets " + held + "; write a path in a folder of its own, for example " + instead
	}
	for _, test := range []struct {
		what  string
		setup Setup
		want  []string
	}{
		{"separate directories", Setup{Socket: "/run/autohealer/shared/p.sock", Sources: []Source{at("a", "/run/autohealer/a/p.sock"), at("b", "/run/autohealer/ab/p.sock"), at("c", "")}}, nil},
		{"a directory within another", Setup{Sources: []Source{at("a", "/x/p.sock"), at("b", "/x/b/p.sock")}},
			[]string{warning("sources[0].socket", "/x", "the socket of b", "/x/a/p.sock")}},
		{"the same directory", Setup{Sources: []Source{at("a", "/x/a.sock"), at("b", "/x//y/../b.sock")}},
			[]string{warning("sources[0].socket", "/x", "the socket of b", "/x/a/a.sock"), warning("sources[1].socket", "/x", "the socket of a", "/x/b/b.sock")}},
		{"the shared socket beside other directories", Setup{Socket: "/run/autohealer/p.sock", Sources: []Source{at("a", "/run/autohealer/a/p.sock"), at("c", "")}},
			[]string{warning("socket", "/run/autohealer", "the socket of a and "+repairs, "/run/autohealer/shared/p.sock")}},
		{"a shared socket without sources", Setup{Socket: "/run/autohealer/p.sock", Sources: []Source{at("a", "/run/autohealer/a/p.sock")}}, nil},
		{"a socket in the root directory", Setup{Sources: []Source{at("a", "/p.sock")}}, []string{warning("sources[0].socket", "/", repairs, "/a/p.sock")}},
		{"a private directory of the agent", Setup{Sources: []Source{at("a", repairs+"/p.sock")}}, []string{warning("sources[0].socket", repairs, repairs, repairs+"/a/p.sock")}},
	} {
		testkit.Same(t, test.setup.Exposed(repairs), test.want, "%s", test.what)
	}
}

// The agent's state file contains the state of each source. This is version 1 of the format.
func TestStoredFormatIsUnchanged(t *testing.T) {
	golden.Check(t, "testdata/state-v1.json", &savedState{})
}

// An older agent between two newer ones keeps the fields that it does not know.
func TestUnknownFieldsOfTheStateAreKept(t *testing.T) {
	golden.CheckNewer(t, "testdata/state-newer.json", func(text []byte) ([]byte, int) {
		src := newSourceState(source("s", "T"), time.Now())
		testkit.Must(t, src.restore(text, "6b7c"))
		again := testkit.Value(src.save("6b7c")).Must(t)
		return again, src.unknownFields.Len()
	})
}
