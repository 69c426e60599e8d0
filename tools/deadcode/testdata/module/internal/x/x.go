// Package x has functions that are named after what reaches them.
package x

type event interface{ event() }

// Told is an event.
type Told struct{}

func (Told) event() {} // marks

// ByCommand and the next two are reached.
func ByCommand() { var _ event = Told{} }

// ByMethod is reached.
func ByMethod() { generic(1) }

// ByPublic is reached.
func ByPublic() {}

func generic[T any](T) {}

// ByTest is reached by a test alone.
func ByTest() { byNobody() }

func byNobody() {}

// Unused is a method of a type that is used.
func (Told) Unused() int { return 1 }
