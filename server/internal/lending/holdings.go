package lending

import (
	"github.com/stint-io/stint/limit"
)

// identityHoldings count what the identities have, in the loop.
type identityHoldings map[string]*identityHolding

// identityHolding is what the instances of one identity have.
type identityHolding struct {
	instances, keys int
	leaving         []leaving // keys of sessions that were replaced: their leases may run on
}

type leaving struct {
	keys  int
	until limit.Time
}

// mayJoin says whether an identity may have one more instance. Those that have gone count until their leases
// have ended, so that a fleet can be replaced at once.
func (h identityHoldings) mayJoin(st *stream) bool {
	of := h[st.holder.name]
	return st.holder.may == nil || of == nil || of.instances < 2*st.holder.may.MaxStreams
}

// of returns the holding of a stream's identity; nil = of nobody.
func (h identityHoldings) of(st *stream) *identityHolding {
	if st.holder.session == nil {
		return nil
	}
	of := h[st.holder.name]
	if of == nil {
		of = &identityHolding{}
		h[st.holder.name] = of
	}
	return of
}

// forget takes a member out, whose leases have ended.
func (h identityHoldings) forget(m *member) {
	of := m.holding
	if of == nil {
		return
	}
	of.instances--
	of.keys -= len(m.handles)
	m.holding = nil
	if of.instances == 0 && of.keys == 0 {
		delete(h, m.identity)
	}
}

// replace takes out the keys of a session whose leases run on until a time.
func (m *member) replace(until limit.Time) {
	if m.holding != nil && len(m.handles) > 0 {
		m.holding.leaving = append(m.holding.leaving, leaving{len(m.handles), until})
	}
}

// settle takes out what has ended.
func (h identityHoldings) settle(now limit.Time) {
	for name, of := range h {
		left := of.leaving[:0]
		for _, l := range of.leaving {
			if l.until > now {
				left = append(left, l)
			} else {
				of.keys -= l.keys
			}
		}
		if of.leaving = left; of.instances == 0 && of.keys == 0 {
			delete(h, name)
		}
	}
}

func (m *member) count(n int) {
	if m.holding != nil {
		m.holding.keys += n
	}
}
