package config

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/resourcestack/autohealer/catalog"
)

// ProblemSources configures where third-party daemons report problems, and which daemons may.
type ProblemSources struct {
	Socket  string // for all sources without their own socket
	TCP     string // a loopback address for sources with a token; empty means none
	Sources []ProblemSource
}

// ProblemSource is a third-party daemon. Package intake validates the values and their
// combinations.
type ProblemSource struct {
	Name        string
	Socket      string
	UID, GID    *int
	TokenFile   string
	Conditions  []string
	Declared    []catalog.Condition // the condition types that the file adds to the catalog
	Silence     time.Duration
	Rate, Burst int
	Connections int
}

// The defaults.
const (
	defaultSocket      = "/run/autohealer/shared/problems.sock" // where clients look for it, too
	defaultSilence     = 2 * time.Minute
	defaultRate        = 20
	defaultBurst       = 200
	defaultConnections = 4
)

// DraftSources reads as much as possible from a file that [Parse] refuses, and replaces invalid
// values with defaults. The caller can then report further errors together with those of Parse. It
// returns nil if the file is of another kind.
func DraftSources(text []byte) *ProblemSources {
	root, err := parseObject(text)
	if err != nil {
		return nil
	}
	top := (&reader{}).section("", "the top", root)
	if checkKind(Problems, top) != nil {
		return nil
	}
	return problemSources(top)
}

func problemSources(top *section) *ProblemSources {
	p := &ProblemSources{Socket: top.text("socket", defaultSocket), TCP: top.text("tcp", "")}
	declared := declaredTypes(top)
	for s := range top.each("sources", "a source") {
		source := problemSource(s)
		source.Declared = declared
		p.Sources = append(p.Sources, source)
	}
	for i, c := range declared {
		if !slices.ContainsFunc(p.Sources, func(s ProblemSource) bool { return slices.Contains(s.Conditions, c.Type) }) {
			top.warn(fmt.Sprintf("conditions[%d]", i), "no source reports %s; add it to the conditions of a source", quoteName(c.Type))
		}
	}
	if len(p.Sources) == 0 && !top.refused["sources"] {
		top.warn("sources", "missing, so no daemon can report")
	}
	return p
}

// declaredTypes reads the condition types that the file adds to the catalog.
func declaredTypes(top *section) []catalog.Condition {
	declared := declarations(top, func(s *section, c *Condition) {
		if _, inCatalog := catalog.Lookup(c.Type); !inCatalog {
			s.required("meaning", "what the problem is, in a sentence")
		}
	})
	types := make([]catalog.Condition, 0, len(declared))
	for _, c := range declared {
		types = append(types, catalog.Condition{Type: c.Type, Source: catalog.ThirdParty, Healthy: c.Healthy, Meaning: c.Meaning, SurvivesReboot: c.SurvivesReboot})
	}
	return types
}

func problemSource(s *section) ProblemSource {
	source := ProblemSource{
		Name:        s.required("name", "the name under which the daemon reports"),
		Socket:      s.text("socket", ""),
		UID:         s.id("uid"),
		GID:         s.id("gid"),
		TokenFile:   s.text("tokenFile", ""),
		Conditions:  s.texts("conditions"),
		Silence:     s.positive("silence", defaultSilence),
		Rate:        s.number("rate", 1, 1_000_000, defaultRate),
		Burst:       s.number("burst", 1, 1_000_000, defaultBurst),
		Connections: s.number("connections", 1, 1000, defaultConnections),
	}
	if source.UID != nil && *source.UID == 0 && source.Socket == "" && source.TokenFile == "" {
		s.warn("uid", "any root process on this node, also in containers, can report as %s; set a tokenFile or a socket as well", quoteName(source.Name))
	}
	if len(source.Conditions) == 0 && !s.refused["conditions"] {
		s.warn("conditions", "missing, so that %s reports Events only", quoteName(source.Name))
	}
	return source
}

// id reads a user or group ID. Nil means any.
func (s *section) id(name string) *int {
	id := s.number(name, 0, math.MaxUint32-1, -1)
	if id < 0 {
		return nil
	}
	return &id
}
