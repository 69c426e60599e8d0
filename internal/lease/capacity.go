package lease

import (
	"github.com/stint-io/stint/internal/fixed"
)

func (h Capacity) Add(o Capacity) Capacity {
	return Capacity{h.Rate + o.Rate, h.Burst + o.Burst, h.Tokens + o.Tokens}
}

// saturate is plus for what may be more than fits, of amounts that are not negative.
func (h Capacity) SaturatingAdd(o Capacity) Capacity {
	return Capacity{fixed.SaturatingAdd(h.Rate, o.Rate), fixed.SaturatingAdd(h.Burst, o.Burst), fixed.SaturatingAdd(h.Tokens, o.Tokens)}
}

func (h Capacity) Sub(o Capacity) Capacity {
	return Capacity{h.Rate - o.Rate, h.Burst - o.Burst, h.Tokens - o.Tokens}
}
