package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteSize is a flag for a number of bytes, written as GOMEMLIMIT is: 268435456, 512MiB,
// 1GiB.
type byteSize struct {
	bytes *int64
	least int64
}

var byteUnits = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// Set implements pflag.Value.
func (b byteSize) Set(s string) error {
	digits, unit := s, int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			digits, unit = rest, u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || strings.HasPrefix(digits, "+") {
		return fmt.Errorf("%q is no number of bytes, write it as 512MiB, 1GiB or 268435456: a whole number, with B, KiB, MiB, GiB or TiB if with a unit", s)
	}
	if n > math.MaxInt64/unit {
		return fmt.Errorf("%q is above %d bytes", s, int64(math.MaxInt64))
	}
	if n*unit < b.least {
		return fmt.Errorf("%q is below %s, which the first tables take", s, formatBytes(b.least))
	}
	*b.bytes = n * unit
	return nil
}

// String implements pflag.Value.
func (b byteSize) String() string {
	if b.bytes == nil {
		return ""
	}
	return formatBytes(*b.bytes)
}

// Type implements pflag.Value.
func (byteSize) Type() string { return "bytes" }

// formatBytes writes n as Set reads it, in the largest unit of which it is a whole number.
func formatBytes(n int64) string {
	for _, u := range byteUnits {
		if n > 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}
