package lease

// Event is what a machine is stepped with.
type Event interface{ Event() }

// Tick says that the time which Next named has come. An early one is harmless.
type Tick struct{}

func (*Report) Event() {}
func (*Grant) Event()  {}
func (Tick) Event()    {}
