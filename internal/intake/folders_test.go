package intake

import (
	"slices"
	"testing"
)

func TestAFolderThatGivesAwayTheSocketOfAnotherIsWarnedOf(t *testing.T) {
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
		{"each has its folder", Setup{Socket: "/run/autohealer/shared/p.sock", Sources: []Source{at("a", "/run/autohealer/a/p.sock"), at("b", "/run/autohealer/ab/p.sock"), at("c", "")}}, nil},
		{"a folder within another", Setup{Sources: []Source{at("a", "/x/p.sock"), at("b", "/x/b/p.sock")}},
			[]string{warning("sources[0].socket", "/x", "the socket of b", "/x/a/p.sock")}},
		{"the same folder", Setup{Sources: []Source{at("a", "/x/a.sock"), at("b", "/x//y/../b.sock")}},
			[]string{warning("sources[0].socket", "/x", "the socket of b", "/x/a/a.sock"), warning("sources[1].socket", "/x", "the socket of a", "/x/b/b.sock")}},
		{"that of all beside folders", Setup{Socket: "/run/autohealer/p.sock", Sources: []Source{at("a", "/run/autohealer/a/p.sock"), at("c", "")}},
			[]string{warning("socket", "/run/autohealer", "the socket of a and "+repairs, "/run/autohealer/shared/p.sock")}},
		{"that of all, which nobody uses", Setup{Socket: "/run/autohealer/p.sock", Sources: []Source{at("a", "/run/autohealer/a/p.sock")}}, nil},
		{"one at the root", Setup{Sources: []Source{at("a", "/p.sock")}}, []string{warning("sources[0].socket", "/", repairs, "/a/p.sock")}},
		{"what is the agent's", Setup{Sources: []Source{at("a", repairs+"/p.sock")}}, []string{warning("sources[0].socket", repairs, repairs, repairs+"/a/p.sock")}},
	} {
		if got := test.setup.Exposed(repairs); !slices.Equal(got, test.want) {
			t.Errorf("%s: got\n%q\nwant\n%q", test.what, got, test.want)
		}
	}
}
