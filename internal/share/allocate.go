package share

// Allocation is how capacity is divided among those who want it. The zero value is
// MaxMin.
type Allocation uint8

// The kinds of allocation.
const (
	MaxMin       Allocation = iota // exact weighted max-min fairness, by priority bands
	Proportional                   // in overload each gets in proportion to what it wants
	Equal                          // each gets capacity/instances, by weight, whatever it wants
	Static                         // each gets what it wants up to the whole capacity: a limit per instance
	None                           // each gets what it wants: no limit
	Busy                           // the max-rate rule of Hermes: from those who do not use theirs to those who do
)

// Claim is the part of one instance in an allocation.
type Claim struct {
	Want   Amount // per second; 0 = nothing
	Has    Amount // what it holds
	Used   Amount // of what it holds, per second; for Busy
	Weight uint32 // 0 counts as 1
	Band   uint8  // higher goes first
}

// Guarantee promises a band an amount before higher bands take everything.
type Guarantee struct {
	Band   uint8
	Amount Amount
}
