package match

func (l literal) String() string {
	if l.fold {
		return "(?i)" + l.text
	}
	return l.text
}

// Literal returns texts of which every match contains at least one. A text
// that may be in either case starts with (?i). If ok is false, every line must be tried.
func (p *Pattern) Literal() ([]string, bool) {
	texts := make([]string, len(p.literals))
	for i, l := range p.literals {
		texts[i] = l.String()
	}
	return texts, len(texts) > 0
}
