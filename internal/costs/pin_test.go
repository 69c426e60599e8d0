package costs

import (
	"runtime"
	"testing"
	"time"
)

// TestPinTellsRequestsApart: of two requests that run at the same time, the one that computes is
// charged for it and the one that waits is not; together with their part of the rest they are
// charged what the process used. Where threads have no clocks nothing is bound.
func TestPinTellsRequestsApart(t *testing.T) {
	cpu := processClock()
	m := NewMeter(nil, nil, runtime.GOMAXPROCS(0))
	if pin := m.Pin(); pin == nil {
		if runtime.GOOS == "linux" {
			t.Error("the clock of a thread cannot be read")
		}
		return
	} else {
		pin.Unpin()
	}
	begin := cpu()
	type charge struct{ own, rest time.Duration }
	request := func(work func(*Pin)) charge {
		mark := m.Begin()
		pin := m.Pin()
		work(pin)
		pin.Unpin()
		return charge{pin.Used(), m.End(mark, 0)}
	}
	computed := make(chan struct{})
	waiter := make(chan charge)
	go func() { waiter <- request(func(*Pin) { <-computed }) }()
	dear := request(func(pin *Pin) {
		for pin.Used() < 80*ms {
		}
		close(computed)
	})
	cheap := <-waiter
	used := cpu() - begin
	if dear.own < 80*ms || cheap.own > 20*ms {
		t.Errorf("the one that computes: %+v, the one that waits: %+v", dear, cheap)
	}
	all := dear.own + dear.rest + cheap.own + cheap.rest
	if (all - used).Abs() > 2*sampleEvery*time.Duration(runtime.GOMAXPROCS(0))+used/4 {
		t.Errorf("charged %v together, used %v", all, used)
	}
}
