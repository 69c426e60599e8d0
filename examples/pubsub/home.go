package main

import (
	"sync"
	"time"
)

// message is one published message.
type message struct {
	Position uint64 `json:"position"`
	At       int64  `json:"at"` // when the node had it, in nanoseconds since the Unix epoch
	Data     string `json:"data"`
}

const (
	// historyLength is how many messages of a channel can be read again. Not more: ten
	// thousand channels of 16 KiB messages have to fit. Not fewer: at 50 per second it
	// is 20 seconds.
	historyLength = 1024
	// historyPage is how many one answer has: 32 of 16 KiB fit one message of NATS.
	historyPage = 32
	// maxChannels is how many channels a node is home to at a time.
	maxChannels = 10_000
	// channelIdle is after how long a channel that nobody publishes to is forgotten, when
	// there is no room. Its positions go on from the clock, so they still ascend.
	channelIdle = time.Minute
)

// homes are the channels that this node gives positions to, and remembers the latest
// messages of.
type homes struct {
	mu       sync.Mutex
	channels map[string]*history
}

// history is a bounded ring. The positions of a channel follow each other without holes,
// from begin on.
type history struct {
	begin, next uint64 // next is the position of the next message
	ring        []message
	used        time.Time
}

func (h *history) slot(position uint64) int { return int((position - h.begin) % historyLength) }

func (h *history) append(m message) message {
	m.Position = h.next
	h.next++
	if len(h.ring) < historyLength {
		h.ring = append(h.ring, m)
	} else {
		h.ring[h.slot(m.Position)] = m
	}
	return m
}

// first is the earliest position that is still there.
func (h *history) first() uint64 { return h.next - uint64(len(h.ring)) }

func newHomes() *homes { return &homes{channels: map[string]*history{}} }

// channel returns the history of a channel; nil if there is no room for one.
func (h *homes) channel(c channelName, now time.Time) *history {
	key := c.key()
	if known := h.channels[key]; known != nil {
		known.used = now
		return known
	}
	if len(h.channels) >= maxChannels {
		for k, known := range h.channels {
			if now.Sub(known.used) > channelIdle {
				delete(h.channels, k)
			}
		}
		if len(h.channels) >= maxChannels {
			return nil
		}
	}
	begin := uint64(now.UnixMicro())
	fresh := &history{begin: begin, next: begin, used: now}
	h.channels[key] = fresh
	return fresh
}

// append gives a message its position and calls publish with it, in the order of positions.
func (h *homes) append(c channelName, m message, publish func(message) error) (uint64, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.channel(c, time.Now())
	if known == nil {
		return 0, false, nil
	}
	m = known.append(m)
	return m.Position, true, publish(m)
}

// head is the position of the latest message; 0 if the channel has none.
func (h *homes) head(c channelName) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.channels[c.key()]; known != nil {
		return known.next - 1
	}
	return 0
}

// page is a part of a history.
type page struct {
	Messages []message `json:"messages"`
	// First is the earliest position that is still there, and Next where to go on; 0 = it
	// was all.
	First uint64 `json:"first"`
	Next  uint64 `json:"next,omitempty"`
}

// read returns the messages from one position to another, both inclusive, as far as they
// are there and fit a page.
func (h *homes) read(c channelName, from, to uint64) page {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := page{Messages: []message{}}
	known := h.channels[c.key()]
	if known == nil || len(known.ring) == 0 {
		return p
	}
	p.First = known.first()
	for position := max(from, p.First); position < known.next && position <= to; position++ {
		if len(p.Messages) == historyPage {
			p.Next = position
			break
		}
		p.Messages = append(p.Messages, known.ring[known.slot(position)])
	}
	return p
}
