package rest

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// maxDoubted bounds the names of attributes that are looked at: callers choose them.
const maxDoubted = 256

// doubts logs each attribute of requests that no limit reads, and whose name is close to one that a limit reads and the request
// lacks: the limit does not apply, and nothing else says so. The zero value logs nothing.
type doubts struct {
	log   *slog.Logger
	names atomic.Pointer[looked]
	mu    sync.Mutex // held by writers of names
}

// looked are the names that were looked at while some limits were in force.
type looked struct {
	known []string // what the limits read
	names map[string]bool
}

func (l *looked) of(known []string) bool {
	return l != nil && len(l.known) == len(known) && (len(known) == 0 || &l.known[0] == &known[0])
}

// note looks at the attributes of one request. known is what the limits read.
func (d *doubts) note(known []string, attrs []limit.Attribute) {
	if d.log == nil || len(known) == 0 {
		return
	}
	l := d.names.Load()
	for i := range attrs {
		if l.of(known) && (l.names[attrs[i].Name] || len(l.names) >= maxDoubted) {
			continue
		}
		l = d.look(known, attrs, attrs[i].Name)
	}
}

func (d *doubts) look(known []string, attrs []limit.Attribute, name string) *looked {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := &looked{known: known, names: map[string]bool{name: true}}
	if l := d.names.Load(); l.of(known) {
		if l.names[name] {
			return l
		}
		maps.Copy(next.names, l.names)
	}
	d.names.Store(next)
	if slices.Contains(known, name) || slices.Contains(known, "*") {
		return next
	}
	near, ok := document.Suggest(name, known)
	if !ok || slices.ContainsFunc(attrs, func(a limit.Attribute) bool { return a.Name == near }) {
		return next
	}
	d.log.Warn("a request has an attribute that no limit reads: names are compared exactly", "attribute", name, "hint", "did you mean "+near+"?")
	return next
}
