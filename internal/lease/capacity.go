package lease

import (
	"github.com/stint-io/stint/internal/fixed"
)

// Add returns c + o, which must not overflow, or are totals that wrap around.
func (c Capacity) Add(o Capacity) Capacity {
	return Capacity{c.Rate + o.Rate, c.Burst + o.Burst, c.Tokens + o.Tokens}
}

// SaturatingAdd returns c + o of amounts that are not negative, each at most MaxAmount.
func (c Capacity) SaturatingAdd(o Capacity) Capacity {
	return Capacity{fixed.SaturatingAdd(c.Rate, o.Rate), fixed.SaturatingAdd(c.Burst, o.Burst), fixed.SaturatingAdd(c.Tokens, o.Tokens)}
}

// Sub returns c - o. Of totals that wrap around it is the difference.
func (c Capacity) Sub(o Capacity) Capacity {
	return Capacity{c.Rate - o.Rate, c.Burst - o.Burst, c.Tokens - o.Tokens}
}
