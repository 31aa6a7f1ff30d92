package triage

// symbol stands for a string that many nodes share: the key or value of a label, the type or
// reason of a condition. Nodes hold symbols instead of strings to save memory and to make
// comparisons fast.
type symbol uint32

// symbols assigns symbols to strings. It counts uses, because otherwise the labels of
// deleted nodes would stay for ever.
type symbols struct {
	ids   map[string]symbol
	names []string
	uses  []uint32
	free  []symbol
}

// acquire returns the symbol of a name and counts a use.
func (s *symbols) acquire(name string) symbol {
	id, ok := s.ids[name]
	switch {
	case ok:
	case len(s.free) > 0:
		id = s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		s.ids[name], s.names[id] = id, name
	default:
		id = symbol(len(s.names))
		s.ids[name] = id
		s.names, s.uses = append(s.names, name), append(s.uses, 0)
	}
	s.uses[id]++
	return id
}

// release removes a use.
func (s *symbols) release(id symbol) {
	if s.uses[id]--; s.uses[id] == 0 {
		delete(s.ids, s.names[id])
		s.names[id] = ""
		s.free = append(s.free, id)
	}
}

// noSymbol is never assigned.
const noSymbol = ^symbol(0)

// find returns the symbol of a name without counting a use, or noSymbol if the name has
// none. The result is valid until the next acquire or release.
func (s *symbols) find(name string) symbol {
	if id, ok := s.ids[name]; ok {
		return id
	}
	return noSymbol
}

func (s *symbols) name(id symbol) string { return s.names[id] }
