package rules

import (
	"slices"
	"strings"

	"github.com/stint-io/stint/limit"
)

// StatVaries reports whether requests of different values have different names in the statistics of
// Envoy's rate limit service: detailed_metric, value_to_metric, or a star in a key.
func (l *Limit) StatVaries() bool { return l.statVaries }

func (l *Limit) findStatVaries() bool {
	return l.detailed || slices.Contains(l.metric, true) || slices.ContainsFunc(l.Key, func(k string) bool { return strings.Contains(k, "*") })
}

// AppendStatKey appends what those statistics call this rule for a descriptor with these entries, as many as
// Key has: domain.key_value.key_value.
func (l *Limit) AppendStatKey(dst []byte, entries []limit.Attribute) []byte {
	dst = append(dst, l.Domain...)
	shared := slices.ContainsFunc(l.share, func(s string) bool { return s != "" })
	for i := range entries {
		value := l.Values[i]
		switch {
		case l.share[i] != "":
			value = l.share[i]
		case l.detailed, l.metric[i]:
			value = entries[i].Value
		}
		dst = append(append(dst, '.'), entries[i].Name...)
		// With detailed_metric a value that is empty leaves its mark, unless another entry is shared.
		if value != "" || l.detailed && !shared {
			dst = append(append(dst, '_'), value...)
		}
	}
	return dst
}
