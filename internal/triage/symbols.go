package triage

// symbol stands for a string that many nodes share: a label's key or value, the
// type or the reason of a condition. Nodes hold symbols instead of strings,
// which keeps a large cluster small and comparisons short.
type symbol uint32

// symbols gives out symbols and takes them back. It counts uses, because the
// labels of nodes that come and go would otherwise stay for ever.
type symbols struct {
	ids   map[string]symbol
	names []string
	uses  []uint32
	free  []symbol
}

// hold returns the symbol of a name and counts one more use of it.
func (s *symbols) hold(name string) symbol {
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

// drop takes back one use.
func (s *symbols) drop(id symbol) {
	if s.uses[id]--; s.uses[id] == 0 {
		delete(s.ids, s.names[id])
		s.names[id] = ""
		s.free = append(s.free, id)
	}
}

// nobodys is a symbol that is never given out.
const nobodys = ^symbol(0)

// find returns the symbol of a name without counting a use of it, and nobody's if
// nobody uses it. It is good until the next one is held or dropped.
func (s *symbols) find(name string) symbol {
	if id, ok := s.ids[name]; ok {
		return id
	}
	return nobodys
}

func (s *symbols) name(id symbol) string { return s.names[id] }
