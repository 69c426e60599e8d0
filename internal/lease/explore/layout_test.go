package explore

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// layout says how the memory of a type is copied and hashed. It is computed once for each type.
type layout struct {
	typ    reflect.Type
	kind   kind
	size   uintptr
	elem   *layout // of pointers, slices and arrays
	fields []field // of structs
	length int     // of arrays
	plain  bool    // without anything that a copy would share
}

type field struct {
	offset  uintptr
	layout  *layout
	ignored bool // by the hash
}

type kind uint8

const (
	scalar kind = iota
	text
	pointer
	slice
	array
	structure
	dictionary
	dynamic // an interface
	shared  // never changes, or means nothing: functions, seals
)

// ignored are fields that say nothing about what a machine will do: memory that is used again,
// figures for metrics, and indexes of what is hashed elsewhere.
var ignored = map[string]string{
	"coordinator.Coordinator.stats":   "figures",
	"coordinator.Coordinator.out":     "memory of a step",
	"coordinator.replication.levels":  "memory of a step",
	"coordinator.session.of":          "an index of accounts",
	"ledger.Resource.Scratch":         "memory of a round",
	"coordinator.Coordinator.scratch": "memory of a round",
	"agent.reports.last":              "memory of a step",
}

// layouts are computed by one goroutine.
type layouts map[reflect.Type]*layout

func (all layouts) of(t reflect.Type) *layout {
	if l := all[t]; l != nil {
		return l
	}
	l := &layout{typ: t, size: t.Size()}
	all[t] = l // first, since types refer to themselves
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr,
		reflect.Float32, reflect.Float64:
		l.kind, l.plain = scalar, true
	case reflect.String:
		l.kind, l.plain = text, true
	case reflect.Func:
		l.kind, l.plain = shared, true
	case reflect.Pointer:
		if l.kind = pointer; t.Elem().Name() == "Seal" {
			l.kind, l.plain = shared, true // its memory is used again by each signature
			break
		}
		l.elem = all.of(t.Elem())
	case reflect.Slice:
		l.kind, l.elem = slice, all.of(t.Elem())
	case reflect.Array:
		l.kind, l.elem, l.length = array, all.of(t.Elem()), t.Len()
		l.plain = l.elem.plain
	case reflect.Map:
		l.kind = dictionary
		all.of(t.Key())
		all.of(t.Elem())
	case reflect.Interface:
		l.kind = dynamic
	case reflect.Struct:
		all.structure(l)
	default:
		panic(fmt.Sprintf("explore: no copy of %v is known", t))
	}
	return l
}

func (all layouts) structure(l *layout) {
	t := l.typ
	if t.PkgPath() == "sync/atomic" && strings.HasPrefix(t.Name(), "Pointer[") {
		// Its pointer has no type; that of the field before it has.
		*l = *all.of(t.Field(0).Type.Elem())
		return
	}
	l.kind, l.plain = structure, true
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Name == "_" {
			continue
		}
		e := all.of(f.Type)
		_, skip := ignored[t.String()+"."+f.Name]
		l.fields = append(l.fields, field{f.Offset, e, skip})
		l.plain = l.plain && e.plain
	}
	l.fields = slices.Clip(l.fields)
}
