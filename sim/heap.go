package sim

// eventKind says what an event does. See engine.handle.
type eventKind uint8

const (
	eventAction    eventKind = iota // ref: index in the timeline
	eventArrival                    // ref: generator; generation: of its event
	eventMessage                    // ref: slot of the network
	eventWake                       // ref: process; generation: of its alarm
	eventMove                       // ref: load
	eventMishap                     // ref: load
	eventMishapEnd                  // ref: load; generation: the position of the instance
	eventLook
	eventSample
)

// event is something that happens at a time. Those of one time happen in the order
// of seq, which is the order in which they were made.
type event struct {
	at         int64 // ns since the start of the run
	seq        uint64
	ref        int32
	generation uint32
	kind       eventKind
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// eventHeap is a binary heap, the earliest event first.
type eventHeap []event

func (h *eventHeap) push(e event) {
	*h = append(*h, e)
	s := *h
	i := len(s) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&s[parent]) {
			break
		}
		s[i] = s[parent]
		i = parent
	}
	s[i] = e
}

// pop takes out the earliest event. The heap must not be empty.
func (h *eventHeap) pop() event {
	s := *h
	top := s[0]
	n := len(s) - 1
	last := s[n]
	*h = s[:n]
	if n > 0 {
		h.replace(last)
	}
	return top
}

// replace puts e in the place of the earliest event: pop and push in one.
func (h *eventHeap) replace(e event) {
	s := *h
	i, n := 0, len(s)
	for {
		child := 2*i + 1
		if child >= n {
			break
		}
		if right := child + 1; right < n && s[right].before(&s[child]) {
			child = right
		}
		if !s[child].before(&e) {
			break
		}
		s[i] = s[child]
		i = child
	}
	s[i] = e
}
