package agree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// want is what the integration suite of envoyproxy/ratelimit expects of one
// descriptor. The zero value is one without a limit.
type want struct {
	over        bool
	limit, left uint32
	unit        rls.RateLimitResponse_RateLimit_Unit
}

// step is a request of that suite, with one entry for each descriptor.
type step struct {
	domain  string
	entries [][2]string
	want    []want
}

const (
	perSecond = rls.RateLimitResponse_RateLimit_SECOND
	ofMinute  = rls.RateLimitResponse_RateLimit_MINUTE
	ofHour    = rls.RateLimitResponse_RateLimit_HOUR
)

// basicSteps are the requests of testBasicBaseConfig, with the keys of its local
// cache or without it, and whether refusals stop the counting of the other keys.
func basicSteps(local string, stop bool) (steps []step) {
	steps = append(steps,
		step{"foo", [][2]string{{"hello" + local, "world"}}, []want{{}}},
		step{"basic", [][2]string{{"key1" + local, "foo"}}, []want{{limit: 50, left: 49, unit: perSecond}}})
	for i := range uint32(25) {
		w := want{limit: 20, unit: ofMinute, over: i >= 20}
		if !w.over {
			w.left = 20 - (i + 1)
		}
		steps = append(steps, step{"another", [][2]string{{"key2" + local, "one"}}, []want{w}})
	}
	for i := range uint32(15) {
		first, second := want{limit: 20, unit: ofMinute, left: 20 - (i + 1)}, want{limit: 10, unit: ofHour, over: i >= 10}
		if !second.over {
			second.left = 10 - (i + 1)
		} else if stop {
			first.left = 10
		}
		steps = append(steps, step{"another", [][2]string{{"key2" + local, "two"}, {"key3" + local, "two"}}, []want{first, second}})
	}
	return steps
}

// sharedSteps are those of testShareThreshold.
func sharedSteps() (steps []step) {
	const domain = "share-threshold-test"
	for i := range uint32(10) {
		steps = append(steps, step{domain, [][2]string{{"files", "files/a.pdf"}}, []want{{limit: 10, left: 9 - i, unit: ofHour}}})
	}
	steps = append(steps, step{domain, [][2]string{{"files", "files/b.csv"}}, []want{{limit: 10, over: true, unit: ofHour}}})
	for i := range 10 {
		steps = append(steps, step{domain, [][2]string{{"files_no_share", fmt.Sprintf("files_no_share/%d", i)}}, []want{{limit: 10, left: 9, unit: ofHour}}})
	}
	return steps
}

// Suite runs the requests of envoyproxy/ratelimit's integration suite against both
// services: configuration, reload and shared thresholds.
type Suite struct {
	Set, Reload Set // of that suite, and with the file that it adds
	XDS         bool
	Redis       string
	Env         []string
	Local       string // ends its keys, "_local" with the local cache
	Stop        bool   // refusals stop the counting of the other keys
}

// Facts is how many answers were those that the suite expects.
type Facts struct {
	Steps, There, Here int
	Faults             []string
}

// Run asks both services everything.
func (s Suite) Run(ctx context.Context, p Programs) (f Facts, err error) {
	dir, err := os.MkdirTemp("", "stint-agree-")
	if err != nil {
		return f, fmt.Errorf("agree: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	where, err := Walk{Set: s.Set, XDS: s.XDS, Redis: s.Redis}.place(ctx, dir)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, where.stop()) }()
	where.env = append(where.env, s.Env...)
	there, here, err := where.start(ctx, p)
	defer there.stop()
	defer here.stop()
	if err != nil {
		return f, err
	}
	if left := time.Minute - time.Since(time.Now().Truncate(time.Minute)); left < 3*time.Second { // of windows of a minute
		time.Sleep(left)
	}
	steps := basicSteps(s.Local, s.Stop)
	if !s.XDS {
		steps = append(steps, sharedSteps()...)
	}
	blocked := step{"reload", [][2]string{{"block" + s.Local, "foo"}}, []want{{}}}
	for _, st := range append(steps, blocked) {
		f.ask(ctx, st, there, here)
	}
	if err := where.put(ctx, append(s.Set.Files, s.Reload.Files...)); err != nil {
		return f, err
	}
	blocking := step{"reload", [][2]string{{"block", "foo"}}, []want{{over: true, unit: perSecond}}}
	f.await(ctx, blocking, there, here)
	f.ask(ctx, step{"reload", [][2]string{{"key1", "foo"}}, []want{{limit: 50, left: 49, unit: perSecond}}}, there, here)
	if err := where.put(ctx, s.Set.Files); err != nil {
		return f, err
	}
	f.await(ctx, step{"reload", blocking.entries, []want{{}}}, there, here)
	return f, nil
}

func (f *Facts) ask(ctx context.Context, st step, there, here *service) {
	f.Steps++
	if fault := st.fault(there.ask(ctx, st.request())); fault != "" {
		f.Faults = append(f.Faults, "there: "+fault)
	} else {
		f.There++
	}
	if fault := st.fault(here.ask(ctx, st.request())); fault != "" {
		f.Faults = append(f.Faults, "here: "+fault)
	} else {
		f.Here++
	}
}

// await asks until both answer as expected, at most for 10 seconds.
func (f *Facts) await(ctx context.Context, st step, there, here *service) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if st.fault(there.ask(ctx, st.request())) == "" && st.fault(here.ask(ctx, st.request())) == "" {
			break
		}
	}
	f.ask(ctx, st, there, here)
}

func (st step) request() *rls.RateLimitRequest {
	q := &rls.RateLimitRequest{Domain: st.domain, HitsAddend: 1}
	for _, e := range st.entries {
		q.Descriptors = append(q.Descriptors, &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: e[0], Value: e[1]}}})
	}
	return q
}

func (st step) fault(a Answer) string {
	if a.Err != nil {
		return fmt.Sprintf("%v: %v", st.entries, a.Err)
	}
	var seen []want
	over := false
	for i, s := range a.Response.Statuses {
		w := want{s.Code == rls.RateLimitResponse_OVER_LIMIT, s.CurrentLimit.GetRequestsPerUnit(), s.LimitRemaining, s.CurrentLimit.GetUnit()}
		seen, over = append(seen, w), over || w.over
		if i >= len(st.want) || w != st.want[i] || (s.CurrentLimit != nil) != (s.DurationUntilReset != nil) {
			return fmt.Sprintf("%v: %+v, want %+v", st.entries, seen, st.want)
		}
	}
	if len(seen) != len(st.want) || over != (a.Response.OverallCode == rls.RateLimitResponse_OVER_LIMIT) {
		return fmt.Sprintf("%v: %v %+v, want %+v", st.entries, a.Response.OverallCode, seen, st.want)
	}
	return ""
}
