package admission

import (
	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// State is where a request stands. It leaves Waiting once and Running once.
type State uint8

// The states of an Item.
const (
	Fresh    State = iota // not offered yet
	Waiting               // in the queue
	Running               // started; [Machine.Finish] ends it
	Finished              // it has run
	Refused               // never queued: Reason says why
	Evicted               // made room for a more important request
	Expired               // waited too long, or could not be done in time: Reason says which
	Left                  // its caller gave up waiting
)

// Item is one request. The exported fields are set before [Machine.Offer] and constant from then
// on. An Item is offered once and must not be copied.
type Item struct {
	Class    uint8  // 0 to Classes-1, the higher the more important
	Level    uint8  // 0 to Levels-1 inside the class, the higher the more important
	Key      uint64 // requests of one key share what one key gets; 0 = none
	Route    uint64 // requests of one route are expected to take the same time
	Cost     int64  // predicted, in nanoseconds of CPU; below 1 is 1
	Deadline int64  // when it must be done; waitline.Never = no deadline
	Of       any    // the owner's

	state   State
	reason  limit.Reason
	cohort  uint32 // of requests that started with room to spare; 0 = it did not
	arrived int64  // when it was offered
	started int64
	charged int64 // cost that has been taken from the bucket
	latest  int64 // the last time at which it can start and still be done by its deadline

	flow       *flow // while it waits
	inFlow     links
	inLevel    links
	expiration waitline.Alarm
}

// links are the neighbours of an Item in a list. An Item is in two lists at a time, that of its
// key and that of its level, which is why waitline.Line does not serve.
type links struct{ prev, next *Item }

// State returns where it stands.
func (it *Item) State() State { return it.state }

// Reason says why it was refused, evicted or has expired; else ReasonNone.
func (it *Item) Reason() limit.Reason { return it.reason }

// Arrived is when it was offered.
func (it *Item) Arrived() int64 { return it.arrived }

// Started is when it started to run.
func (it *Item) Started() int64 { return it.started }

// end moves it to its last state, or to Running.
func (it *Item) end(s State, why limit.Reason) { it.state, it.reason = s, why }
