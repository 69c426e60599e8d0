// Package stint is what others import.
package stint

import "github.com/stint-io/stint/internal/x"

// T has a method that others call.
type T struct{}

// Method is a root.
func (T) Method() { x.ByMethod() }

// Public is a root.
func Public() { x.ByPublic() }
