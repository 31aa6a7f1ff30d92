package format

import (
	"encoding/json"
	"reflect"
)

// Rest holds the fields of a JSON object that this version does not know: those of the
// object itself and of the objects that it holds by name, in maps of any depth. Objects in
// lists and in fields of their own are left out: they are replaced as a whole, and what an
// older version knows nothing of would be said of another one. A nil Rest is empty.
type Rest struct {
	fields Unknown
	inside map[string]*Rest // by the name of a field or the key of a map
}

// ReadAll reads a JSON object into the struct that known points to, as [Read] does, and
// returns all its other fields.
func ReadAll(text []byte, known any) (*Rest, error) {
	if exact, err := read(text, known); exact || err != nil {
		return nil, err
	}
	return restOf(text, reflect.TypeOf(known).Elem())
}

// restOf returns what a struct, or the values of a map, do not know of an object.
func restOf(text []byte, of reflect.Type) (*Rest, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	rest := &Rest{inside: map[string]*Rest{}}
	for name, value := range all {
		var holds reflect.Type
		if of.Kind() == reflect.Map {
			holds = of.Elem()
		} else if field, known := fieldOf(of, name); known {
			holds = field.Type
		} else {
			continue
		}
		delete(all, name)
		if !isFollowed(of, holds) {
			continue
		}
		inside, err := restOf(value, holds)
		if err != nil {
			return nil, err
		}
		if inside != nil {
			rest.inside[name] = inside
		}
	}
	if len(all) > 0 {
		fields, err := json.Marshal(all)
		if err != nil {
			return nil, err
		}
		rest.fields = Unknown(fields)
	}
	if rest.Len() == 0 {
		return nil, nil
	}
	return rest, nil
}

// isFollowed says whether what is in a struct or a map can hold unknown fields: a map
// does, and a struct in a map that does not read itself.
func isFollowed(in, holds reflect.Type) bool {
	return holds.Kind() == reflect.Map ||
		holds.Kind() == reflect.Struct && in.Kind() == reflect.Map && !reflect.PointerTo(holds).Implements(reflect.TypeFor[json.Unmarshaler]())
}

// Write returns a struct with the fields that were read beside it. What the struct does
// not hold any more loses them for good.
func (r *Rest) Write(known any) ([]byte, error) {
	text, err := json.Marshal(known)
	if err != nil || r == nil {
		return text, err
	}
	return r.into(text)
}

func (r *Rest) into(text []byte) ([]byte, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	for name, rest := range r.inside {
		value, there := all[name]
		if !there {
			delete(r.inside, name)
			continue
		}
		var err error
		if all[name], err = rest.into(value); err != nil {
			return nil, err
		}
	}
	return Write(all, r.fields)
}

// Len is how many fields there are.
func (r *Rest) Len() int {
	if r == nil {
		return 0
	}
	n := r.fields.Len()
	for _, rest := range r.inside {
		n += rest.Len()
	}
	return n
}
