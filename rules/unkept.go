package rules

import (
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/document"
)

// keptWindow is from when a bucket is a budget that a restart must not change: shorter ones are full again soon.
const keptWindow = time.Hour

// Unkept says of leased limits whose bucket takes an hour or longer to fill that it is in no file.
func (s *Set) Unkept() (list []Error) {
	for _, l := range s.native {
		longest := l.Base.Policy.Window()
		for i := range l.Overrides {
			longest = max(longest, l.Overrides[i].Policy.Window())
		}
		if l.Sharing == SharingLeased && longest >= keptWindow && len(list) < document.MaxFaults {
			list = append(list, Error{
				File: l.File, Line: l.Line, Hint: "for a budget use sharing: exact, with a state directory or Redis",
				Message: fmt.Sprintf("limit %q: its bucket takes %v to fill and is leased, which no file keeps: it begins empty when all coordinators are killed", l.Name, longest),
			})
		}
	}
	return list
}
