package tables

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/stint-io/stint/bench/internal/measure"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// shape is a way to write many limits of which each request meets one.
type shape struct {
	name  string
	limit func(i int) string // the match of the i-th limit, in YAML
	meets func(i int) string // a path that only the i-th limit matches
}

func shapes() []shape {
	return []shape{
		{"equality", func(i int) string { return fmt.Sprintf("/v1/resource-%d", i) }, func(i int) string { return fmt.Sprintf("/v1/resource-%d", i) }},
		{"glob", func(i int) string { return fmt.Sprintf("/v1/resource-%d/*", i) }, func(i int) string { return fmt.Sprintf("/v1/resource-%d/item", i) }},
	}
}

// file writes n limits of one shape.
func (s shape) file(n int) []byte {
	var b strings.Builder
	b.WriteString("limits:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - name: limit-%d\n    match: {method: POST, path: %q}\n    key: [user]\n    rate: 100/s\n    burst: 200\n", i, s.limit(i))
	}
	return []byte(b.String())
}

// matcher matches random requests against a set, each of which meets one limit.
type matcher struct {
	set      *rules.Set
	requests [][]limit.Attribute
	want     []string
	next     int
	dst      []rules.Matched
	scratch  []byte
}

// requestsKept is how many different requests a matcher sends, few enough to stay
// in the processor's cache: what is measured is matching, not fetching requests.
const requestsKept = 256

func newMatcher(s shape, n int) (*matcher, error) {
	set, err := rules.Parse(fmt.Sprintf("%s-%d.yaml", s.name, n), s.file(n))
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	m := &matcher{set: set}
	random := rand.New(rand.NewPCG(1, uint64(n)))
	for range requestsKept {
		i := random.IntN(n)
		m.want = append(m.want, fmt.Sprintf("limit-%d", i))
		m.requests = append(m.requests, []limit.Attribute{
			{Name: "method", Value: "POST"},
			{Name: "path", Value: s.meets(i)},
			{Name: "user", Value: fmt.Sprintf("user-%d", i)},
			{Name: "ip", Value: "192.0.2.7"},
		})
	}
	return m, nil
}

// spin matches n requests and returns how many met the right limit and no other.
func (m *matcher) spin(n int) (right int) {
	for range n {
		i := m.next % requestsKept
		m.next++
		m.dst, m.scratch = m.set.Match("", m.requests[i], m.dst[:0], m.scratch[:0])
		if len(m.dst) == 1 && m.dst[0].Limit.Name == m.want[i] {
			right++
		}
	}
	return right
}

// Match compares matching against few limits with matching against many.
func Match(cfg Config, rep *Report) error {
	const few = 10
	var rows [][]string
	for _, s := range shapes() {
		var matchers []*matcher
		for _, n := range []int{few, cfg.Limits} {
			m, err := newMatcher(s, n)
			if err != nil {
				return err
			}
			matchers = append(matchers, m)
		}
		samples, err := measure.Interleave(cfg.Rounds, len(matchers), func(i int) (measure.Sample, error) {
			x := measure.Slice(1, cfg.Slice, func(_, n int) int { return matchers[i].spin(n) })
			if x.Yes != x.Ops {
				return x, fmt.Errorf("bench: match: %d of %d requests met their limit: the answers are wrong", x.Yes, x.Ops)
			}
			return x, nil
		})
		if err != nil {
			return err
		}
		ns := func(i int) measure.Series {
			return measure.Figures(samples[i], func(s measure.Sample) float64 { return s.NsPerOp })
		}
		ratio := ns(1).Over(ns(0)).Median()
		rows = append(rows, []string{
			s.name, ns(0).Format("%.0f"), ns(1).Format("%.0f"), fmt.Sprintf("%.2f", ratio),
			fmt.Sprintf("%.0f", measure.Figures(samples[1], measure.Sample.AllocsPerOp).Median()),
		})
		rep.AtMost(fmt.Sprintf("matching by %s: %d limits / %d limits", s.name, cfg.Limits, few), ratio, 2, " ×")
	}
	rep.Section("Matching",
		"Requests with four attributes against a file in which each meets one limit, by method and path; one thread. ns per request.")
	rep.Table([]string{"", fmt.Sprintf("%d limits", few), fmt.Sprintf("%d limits", cfg.Limits), "ratio", "allocs"}, rows)
	return nil
}
