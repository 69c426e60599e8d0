package replay

import (
	"time"

	"github.com/stint-io/stint/limit"
)

// maxSlots is how many points a line of a chart has at most. Not more: it is drawn in some 900 pixels.
const maxSlots = 400

// timeline divides the time of a log, whose length nobody knows beforehand, into slots of equal width. The
// width doubles when they do not suffice.
type timeline struct {
	start limit.Time
	width time.Duration
	last  int
	until limit.Time // the end of the slot last
}

// series counts requests in the slots of a timeline. What is neither admitted nor refused was refused by
// another limit.
type series struct{ asked, admitted, refused []int64 }

// slot returns the slot of a time, which is not before the one of the call before.
func (t *timeline) slot(at limit.Time, p *player) int {
	if at < t.until {
		return t.last
	}
	for int64(at-t.start)/int64(t.width) >= maxSlots {
		t.width *= 2
		p.total.series.halve()
		for _, c := range p.limits {
			if c != nil {
				c.series.halve()
			}
		}
	}
	t.last = int(int64(at-t.start) / int64(t.width))
	t.until = t.start + limit.Time(t.last+1)*limit.Time(t.width)
	return t.last
}

func (s *series) add(slot int, admitted, refused bool) {
	for len(s.asked) <= slot {
		s.asked, s.admitted, s.refused = append(s.asked, 0), append(s.admitted, 0), append(s.refused, 0)
	}
	s.asked[slot]++
	if admitted {
		s.admitted[slot]++
	}
	if refused {
		s.refused[slot]++
	}
}

// halve joins each two slots.
func (s *series) halve() {
	for _, list := range []*[]int64{&s.asked, &s.admitted, &s.refused} {
		n := 0
		for i := 0; i < len(*list); i += 2 {
			sum := (*list)[i]
			if i+1 < len(*list) {
				sum += (*list)[i+1]
			}
			(*list)[n] = sum
			n++
		}
		*list = (*list)[:n]
	}
}
