package limit

import (
	"context"
	"fmt"
	"time"
)

// tooLong is an ErrWaitTooLong with its figures. The text is made only when it is read: under
// overload many waits fail at once.
type tooLong struct {
	wait    time.Duration // until the permit at the earliest; 0 = it is not known
	longest time.Duration // the longest wait that the caller accepts
	hurried bool          // by the context's deadline
	changed bool          // the policy changed meanwhile
	queue   bool          // of a Queue, whose wait is a lower bound
}

// Error implements error.
func (e *tooLong) Error() string {
	text := ErrWaitTooLong.Error() + ": "
	switch {
	case e.changed && e.wait > 0:
		text += fmt.Sprintf("the limit has changed, and the permit would come %v too late", e.wait)
	case e.changed:
		text += "the limit has changed, and the permit would come too late"
	case e.wait == Never:
		text += "no permit is to be expected"
	case e.queue && e.wait > 0:
		text += fmt.Sprintf("the permit would come in %v at the earliest", e.wait)
	case e.wait > 0:
		text += fmt.Sprintf("the permit would come in %v", e.wait)
	default:
		text += "the permit did not come"
	}
	if e.hurried {
		return text + ", want it before the deadline: " + context.DeadlineExceeded.Error()
	}
	if e.changed {
		return text
	}
	return text + fmt.Sprintf(", want at most %v", e.longest)
}

// Is reports whether target is one of the errors that e stands for.
func (e *tooLong) Is(target error) bool {
	return target == ErrWaitTooLong || e.hurried && target == context.DeadlineExceeded
}
