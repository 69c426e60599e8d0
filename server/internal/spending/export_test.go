package spending

// Owed is what all keys owe.
func (s *Store) Owed() (n int64) {
	s.table.Each(func(l keyLease) {
		if r, ok := l.charger.(*rate); ok {
			n += r.owed.tokens.Load()
		}
	})
	return n
}

// Keys is how many keys have a lease, or ask for one.
func (s *Store) Keys() int { return s.table.Len() }
