package rules

import (
	"strings"

	"github.com/stint-io/stint/internal/document"
)

// Error is one fault in a limit file, or one warning about it.
type Error struct {
	File    string // as given to Load or Parse
	Line    int    // from 1; 0 when the fault has no place in the file
	Column  int    // from 1, in characters; 0 when unknown
	Message string // what is wrong
	Hint    string // what to do; may be empty
	Excerpt string // the line with a caret below the column; may be empty
}

// Error returns the place and the message, then the excerpt and the hint on
// lines of their own.
func (e Error) Error() string { return document.Fault(e).Text() }

// Errors are all the faults found, in the order of the files. [Load], [Parse] and
// [Watch] return their errors as an Errors.
type Errors []Error

// Error returns all faults, one below the other.
func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i := range e {
		texts[i] = e[i].Error()
	}
	return strings.Join(texts, "\n")
}

// errorsOf returns the faults as an [Errors], or nil when there are none.
func errorsOf(found *document.Faults) error {
	var list Errors
	for _, f := range found.Sorted() {
		list = append(list, Error(f))
	}
	if list == nil {
		return nil
	}
	return list
}
