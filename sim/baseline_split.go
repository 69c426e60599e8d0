package sim

// EqualSplit is our model of the limiter of LINE's campaign of 2020 as described: each
// instance limits itself to limit/N; the limit and the number of instances come from
// a configuration service. Instances exchange no messages.
//
// Where the description leaves a choice: N is that of [Setup], known to all from the
// start, and a new limit is known everywhere at once. The described counter starts
// anew at each second of the wall clock and admits twice the share around the change of the second;
// a token bucket of the same rate is the kinder reading. A share below one request
// per second is kept as a fraction, where whole numbers would block the instance or
// let it have one.
type EqualSplit struct{}

// Name returns "equal-split".
func (EqualSplit) Name() string { return "equal-split" }

// Coordinator returns nil: there is none.
func (EqualSplit) Coordinator(Env, Setup, Address, int) Node { return nil }

// Instance makes an instance that admits limit/N.
func (EqualSplit) Instance(env Env, setup Setup, _, _ int) Enforcer {
	return &equalInstance{newModelLimiter(env, setup.Limit, modelEqual(setup)), setup}
}

type equalInstance struct {
	modelLimiter
	setup Setup
}

func (e *equalInstance) Receive(Address, any) {}

func (e *equalInstance) Wake() {
	e.timers.woken()
	e.serve()
}

func (e *equalInstance) SetLimit(l Limit) {
	e.setup.Limit, e.limit = l, l
	e.setRate(modelEqual(e.setup))
}
