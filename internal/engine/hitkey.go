package engine

// Key is the key of the limit's bucket that the hit selects; see [rules.Limit.KeyText]. It belongs to the
// Query and is valid until the next Decide.
func (h *Hit) Key() []byte { return h.key }
