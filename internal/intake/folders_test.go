package intake

import (
	"slices"
	"testing"
)

func TestExposedWarnsOfSharedDirectories(t *testing.T) {
	at := func(name, path string) Source { return Source{Name: name, Socket: path} }
	const repairs = "/run/autohealer/repairs"
	warning := func(field, folder, held, instead string) string {
		return field + ": whoever is given its folder " + folder + " is given " + held + " as well; write a path in a folder of its own, such as " + instead
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
		if got := test.setup.Exposed(repairs); !slices.Equal(got, test.want) {
			t.Errorf("%s: got\n%q\nwant\n%q", test.what, got, test.want)
		}
	}
}
