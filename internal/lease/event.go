package lease

// Event is an input of the state machine of an agent or a coordinator.
type Event interface{ Event() }

// Tick says that the time returned by Next has come. An early one is harmless.
type Tick struct{}

func (*Report) Event() {}
func (*Grant) Event()  {}
func (Tick) Event()    {}
