package explore

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"unsafe"
)

// digest is a hash of a state: 128 bits, so that two of 10^8 states have the same one with a
// probability below 10^-22.
type digest [16]byte

// encoder writes what a pointer leads to as bytes that do not depend on addresses: pointers are
// numbered in the order in which they are met, and maps sorted.
type encoder struct {
	layouts layouts
	out     []byte
	numbers map[target]uint32
}

func newEncoder(l layouts) *encoder { return &encoder{layouts: l, numbers: map[target]uint32{}} }

// digestOf returns the digest of *p.
func digestOf[T any](e *encoder, p *T) digest {
	e.out = e.out[:0]
	clear(e.numbers)
	e.pointer(unsafe.Pointer(p), e.layouts.of(reflect.TypeFor[T]()))
	return sum(e.out)
}

func sum(b []byte) digest {
	h := sha256.Sum256(b)
	return digest(h[:16])
}

func (e *encoder) number(n uint64) { e.out = binary.AppendUvarint(e.out, n) }

func (e *encoder) pointer(at unsafe.Pointer, l *layout) {
	if at == nil {
		e.number(0)
		return
	}
	n, met := e.numbers[target{at, l}]
	if !met {
		n = uint32(len(e.numbers)) + 1
		e.numbers[target{at, l}] = n
	}
	if e.number(uint64(n)); !met {
		e.encode(l, at)
	}
}

func (e *encoder) encode(l *layout, p unsafe.Pointer) {
	switch l.kind {
	case scalar:
		e.scalar(l.size, p)
	case text:
		s := *(*string)(p)
		e.number(uint64(len(s)))
		e.out = append(e.out, s...)
	case pointer:
		e.pointer(*(*unsafe.Pointer)(p), l.elem)
	case slice:
		s := (*sliceHeader)(p)
		e.number(uint64(s.len))
		if l.elem.size == 1 {
			e.out = append(e.out, unsafe.Slice((*byte)(s.data), s.len)...)
			return
		}
		for i := range s.len {
			e.encode(l.elem, unsafe.Add(s.data, uintptr(i)*l.elem.size))
		}
	case array:
		for i := range l.length {
			e.encode(l.elem, unsafe.Add(p, uintptr(i)*l.elem.size))
		}
	case structure:
		for _, f := range l.fields {
			if !f.ignored {
				e.encode(f.layout, unsafe.Add(p, f.offset))
			}
		}
	case dictionary:
		e.dictionary(reflect.NewAt(l.typ, p).Elem())
	case dynamic:
		v := reflect.NewAt(l.typ, p).Elem().Elem()
		if !v.IsValid() {
			e.number(0)
			return
		}
		name := v.Type().String()
		e.number(uint64(len(name)))
		e.out = append(e.out, name...)
		e.value(v)
	}
}

func (e *encoder) scalar(size uintptr, p unsafe.Pointer) {
	switch size {
	case 1:
		e.out = append(e.out, *(*byte)(p))
	case 2:
		e.out = binary.LittleEndian.AppendUint16(e.out, *(*uint16)(p))
	case 4:
		e.out = binary.LittleEndian.AppendUint32(e.out, *(*uint32)(p))
	default:
		e.out = binary.LittleEndian.AppendUint64(e.out, *(*uint64)(p))
	}
}

// value encodes a value that has no address.
func (e *encoder) value(v reflect.Value) {
	l := e.layouts.of(v.Type())
	if l.kind == pointer && !l.plain {
		e.pointer(v.UnsafePointer(), l.elem)
		return
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	e.encode(l, p.UnsafePointer())
}

// dictionary encodes a map by the encodings of its keys, which have no pointers.
func (e *encoder) dictionary(v reflect.Value) {
	e.number(uint64(v.Len()))
	if v.Len() == 0 {
		return
	}
	if k := v.Type().Key().Kind(); k == reflect.Pointer || k == reflect.Interface {
		panic(fmt.Sprintf("explore: a %v has no order", v.Type()))
	}
	type entry struct {
		key   []byte
		value reflect.Value
	}
	entries := make([]entry, 0, v.Len())
	begin := len(e.out)
	for i := v.MapRange(); i.Next(); {
		e.value(i.Key())
		entries = append(entries, entry{bytes.Clone(e.out[begin:]), i.Value()})
		e.out = e.out[:begin]
	}
	slices.SortFunc(entries, func(a, b entry) int { return bytes.Compare(a.key, b.key) })
	for _, x := range entries {
		e.out = append(e.out, x.key...)
		if x.value.Kind() == reflect.Struct && x.value.NumField() == 0 {
			continue
		}
		e.value(x.value)
	}
}
