package sim

import "github.com/stint-io/stint/sim/internal/agenda"

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

// what happens.
type what struct {
	ref        int32
	generation uint32
	kind       eventKind
}

type event = agenda.Event[what]
