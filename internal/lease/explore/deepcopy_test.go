package explore

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"unsafe"
)

// copier makes deep copies of what a pointer leads to, unexported fields included. A pointer into
// the middle of an object, as from an account of the coordinator to that of the ledger which
// it embeds, leads into the copy of the object.
type copier struct {
	layouts layouts
	found   []object // every target of a pointer
	seen    map[target]struct{}
	pending []target
}

type target struct {
	at     unsafe.Pointer
	layout *layout
}

// object is memory that is copied as a whole.
type object struct {
	target
	copied unsafe.Pointer
}

func newCopier(l layouts) *copier { return &copier{layouts: l, seen: map[target]struct{}{}} }

// deepCopy returns a copy of *p that shares nothing with it that changes.
func deepCopy[T any](c *copier, p *T) *T {
	c.found, c.pending = c.found[:0], c.pending[:0]
	clear(c.seen)
	c.point(unsafe.Pointer(p), c.layouts.of(reflect.TypeFor[T]()))
	for len(c.pending) > 0 {
		t := c.pending[len(c.pending)-1]
		c.pending = c.pending[:len(c.pending)-1]
		c.find(t.layout, t.at)
	}
	c.merge()
	for _, o := range c.found {
		c.assign(o.layout.typ, o.copied, o.at)
	}
	for _, o := range c.found {
		c.fix(o.layout, o.copied)
	}
	return (*T)(c.translate(unsafe.Pointer(p)))
}

func (*copier) assign(t reflect.Type, to, from unsafe.Pointer) {
	reflect.NewAt(t, to).Elem().Set(reflect.NewAt(t, from).Elem())
}

// point takes note of the target of a pointer.
func (c *copier) point(at unsafe.Pointer, l *layout) {
	t := target{at, l}
	if _, ok := c.seen[t]; ok || at == nil {
		return
	}
	c.seen[t] = struct{}{}
	c.found = append(c.found, object{target: t})
	c.pending = append(c.pending, t)
}

// find visits every pointer in the memory at p.
func (c *copier) find(l *layout, p unsafe.Pointer) {
	if l.plain {
		return
	}
	switch l.kind {
	case pointer:
		c.point(*(*unsafe.Pointer)(p), l.elem)
	case slice:
		if s := (*sliceHeader)(p); !l.elem.plain {
			for i := range s.len {
				c.find(l.elem, unsafe.Add(s.data, uintptr(i)*l.elem.size))
			}
		}
	case array:
		for i := range l.length {
			c.find(l.elem, unsafe.Add(p, uintptr(i)*l.elem.size))
		}
	case structure:
		for _, f := range l.fields {
			c.find(f.layout, unsafe.Add(p, f.offset))
		}
	case dictionary:
		for i := reflect.NewAt(l.typ, p).Elem().MapRange(); i.Next(); {
			c.findValue(i.Key())
			c.findValue(i.Value())
		}
	case dynamic:
		if v := reflect.NewAt(l.typ, p).Elem().Elem(); v.IsValid() {
			c.findValue(v)
		}
	}
}

// findValue is find of a value that has no address.
func (c *copier) findValue(v reflect.Value) {
	switch l := c.layouts.of(v.Type()); {
	case l.plain, l.kind == slice && l.elem.plain:
	case l.kind == pointer:
		c.point(v.UnsafePointer(), l.elem)
	default:
		panic(fmt.Sprintf("explore: no copy of a %v in a map or an interface is known", v.Type()))
	}
}

// merge keeps of objects that overlap the one that contains the others, and makes room for its copy.
func (c *copier) merge() {
	slices.SortFunc(c.found, func(a, b object) int {
		return cmp.Or(cmp.Compare(uintptr(a.at), uintptr(b.at)), cmp.Compare(b.layout.size, a.layout.size))
	})
	kept := c.found[:0]
	for _, o := range c.found {
		if n := len(kept); n > 0 && uintptr(o.at) < uintptr(kept[n-1].at)+kept[n-1].layout.size {
			continue
		}
		o.copied = reflect.New(o.layout.typ).UnsafePointer()
		kept = append(kept, o)
	}
	c.found = kept
}

// translate returns where the copy of what is at p is.
func (c *copier) translate(p unsafe.Pointer) unsafe.Pointer {
	if p == nil {
		return nil
	}
	i, exact := slices.BinarySearchFunc(c.found, uintptr(p), func(o object, p uintptr) int { return cmp.Compare(uintptr(o.at), p) })
	if !exact {
		i--
	}
	o := c.found[i]
	return unsafe.Add(o.copied, uintptr(p)-uintptr(o.at))
}

// fix makes the pointers in a copy lead to copies.
func (c *copier) fix(l *layout, p unsafe.Pointer) {
	if l.plain {
		return
	}
	switch l.kind {
	case pointer:
		*(*unsafe.Pointer)(p) = c.translate(*(*unsafe.Pointer)(p))
	case slice:
		c.fixSlice(l, p)
	case array:
		for i := range l.length {
			c.fix(l.elem, unsafe.Add(p, uintptr(i)*l.elem.size))
		}
	case structure:
		for _, f := range l.fields {
			c.fix(f.layout, unsafe.Add(p, f.offset))
		}
	case dictionary:
		v := reflect.NewAt(l.typ, p).Elem()
		if v.IsNil() {
			return
		}
		m := reflect.MakeMapWithSize(l.typ, v.Len())
		for i := v.MapRange(); i.Next(); {
			m.SetMapIndex(c.translated(i.Key()), c.translated(i.Value()))
		}
		v.Set(m)
	case dynamic:
		if v := reflect.NewAt(l.typ, p).Elem(); !v.IsNil() {
			v.Set(c.translated(v.Elem()))
		}
	}
}

func (c *copier) fixSlice(l *layout, p unsafe.Pointer) {
	s := (*sliceHeader)(p)
	if s.data == nil {
		return
	}
	v := reflect.NewAt(l.typ, p).Elem()
	copied := reflect.MakeSlice(l.typ, s.len, s.len)
	reflect.Copy(copied, v)
	v.Set(copied)
	if l.elem.plain {
		return
	}
	for i := range s.len {
		c.fix(l.elem, unsafe.Add(s.data, uintptr(i)*l.elem.size))
	}
}

// translated returns the copy of a value of a map or an interface.
func (c *copier) translated(v reflect.Value) reflect.Value {
	switch l := c.layouts.of(v.Type()); {
	case l.plain:
		return v
	case l.kind == slice:
		copied := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(copied, v)
		return copied
	default:
		return reflect.NewAt(v.Type().Elem(), c.translate(v.UnsafePointer()))
	}
}

// sliceHeader is how a slice lies in memory.
type sliceHeader struct {
	data     unsafe.Pointer
	len, cap int
}
