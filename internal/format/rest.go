package format

import (
	"encoding/json"
	"reflect"
)

// Rest holds the fields of a JSON object that this version does not know: those of the
// object itself, and those of objects in its maps, at any depth. It omits objects in lists
// and in struct fields. They are replaced as a whole, so their unknown fields could end up
// in another object. A nil Rest is empty.
type Rest struct {
	fields Unknown
	nested map[string]*Rest // by field name or map key
}

// ReadAll decodes a JSON object like [Read], and returns the unknown fields of the object
// and of the objects in its maps.
func ReadAll(text []byte, known any) (*Rest, error) {
	if exact, err := read(text, known); exact || err != nil {
		return nil, err
	}
	return restOf(text, reflect.TypeOf(known).Elem())
}

// restOf returns the fields of an object that a struct type, or the value type of a map,
// does not know.
func restOf(text []byte, of reflect.Type) (*Rest, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	rest := &Rest{nested: map[string]*Rest{}}
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
		if !isNested(of, holds) {
			continue
		}
		inside, err := restOf(value, holds)
		if err != nil {
			return nil, err
		}
		if inside != nil {
			rest.nested[name] = inside
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

// isNested says whether a value can hold unknown fields: a map can, and so can a struct in a
// map without its own UnmarshalJSON.
func isNested(in, holds reflect.Type) bool {
	return holds.Kind() == reflect.Map ||
		holds.Kind() == reflect.Struct && in.Kind() == reflect.Map && !reflect.PointerTo(holds).Implements(reflect.TypeFor[json.Unmarshaler]())
}

// Write encodes a struct together with its unknown fields. The unknown fields of removed map
// entries are lost.
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
	for name, rest := range r.nested {
		value, there := all[name]
		if !there {
			delete(r.nested, name)
			continue
		}
		var err error
		if all[name], err = rest.into(value); err != nil {
			return nil, err
		}
	}
	return Write(all, r.fields)
}

// Len is the number of unknown fields.
func (r *Rest) Len() int {
	if r == nil {
		return 0
	}
	n := r.fields.Len()
	for _, rest := range r.nested {
		n += rest.Len()
	}
	return n
}
