package leaseservice

// ParentProblem says why limits shared by leases have no capacity from a parent; nil = they have,
// or there is no parent.
func (s *Service) ParentProblem() error {
	if s.parent == nil || !s.Leasing() {
		return nil
	}
	return s.parent.Problem()
}

// Supplied says whether the site has capacity to lend, under a lease or as its mode at expiry says.
func (s *Service) Supplied() bool { return s.parent == nil || s.parent.Supplied(s.now()) }
