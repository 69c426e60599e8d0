//go:build unix

package rules

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Checking a file takes time in proportion to its size, however its faults and warnings are spread: on one line too.
func TestCheckingIsLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	list := func(format string) func(n int) string {
		return func(n int) string {
			var b strings.Builder
			for i := range n {
				b.WriteString(strings.ReplaceAll(format, "#", fmt.Sprint(i)) + ", ")
			}
			return b.String()
		}
	}
	for name, make := range map[string]func(n int) string{
		"lists for limits":      func(n int) string { return "limits: [" + list("[]")(n) + "]" },
		"limits without a rate": func(n int) string { return "limits: [" + list("{name: l#}")(n) + "]" },
		"names that are twice":  func(n int) string { return "limits: [" + list("{name: l, rate: 1/s}")(n) + "]" },
		"good limits":           func(n int) string { return "limits: [" + list("{name: l#, key: [ip], rate: 1/s}")(n) + "]" },
		"limits with warnings":  func(n int) string { return "limits: [" + list("{name: l#, match: {path: a#}, rate: 1/s}")(n) + "]" },
		"an inherited warning":  func(n int) string { return "defaults: {key: [IP]}\nlimits: [" + list("{name: l#, rate: 1/s}")(n) + "]" },
		"values of a match":     func(n int) string { return "limits: [{name: a, rate: 1/s, match: {path: [" + list("a#")(n) + "]}}]" },
		"overrides": func(n int) string {
			return "limits: [{name: a, rate: 1/s, key: [user], overrides: [" + list("{when: {user: u#}, rate: 2/s}")(n) + "]}]"
		},
		"overrides that are bad": func(n int) string {
			return "limits: [{name: a, rate: 1/s, overrides: [" + list("{when: {user: u}, rate: 2/s}")(n) + "]}]"
		},
		"descriptors": func(n int) string {
			return "domain: d\ndescriptors: [" + list("{key: k#, rate_limit: {unit: day, requests_per_unit: 1}}")(n) + "]"
		},
		"bad descriptors": func(n int) string {
			return "domain: d\ndescriptors: [" + list("{key: k, rate_limit: {unit: no}}")(n) + "]"
		},
	} {
		// The processor time of this process, whatever else the machine does.
		used := func() time.Duration {
			var u syscall.Rusage
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
				t.Fatal(err)
			}
			return time.Duration(u.Utime.Nano())
		}
		cost := func(n, times int) time.Duration {
			text := []byte(make(n))
			runtime.GC()
			begin := used()
			for range times {
				_, _ = Parse("l.yaml", text) // many have faults
			}
			return used() - begin
		}
		// Sixteen times as many, a sixteenth as often: as much time, and not 16 times as much.
		small, large := cost(250, 16), cost(4000, 1)
		if large > 5*small+50*time.Millisecond {
			t.Errorf("%s: 16 times 250 take %v, and 4,000 take %v", name, small, large)
		}
	}
}
