//go:build !unix

package usage

import "errors"

var errHeld = errors.New("the file is in use")

type journal struct{ origin string }

func createJournal(string, int64) (*journal, error) {
	return nil, errors.New("usage: files that survive a kill need Linux, macOS or another Unix")
}

func takeJournal(string) (*journal, error) { return nil, errHeld }

func (j *journal) place(s *slot)  { s.n = new(counts) }
func (j *journal) remove() error  { return nil }
func (j *journal) release() error { return nil }
