package rpc

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// Each field that a message has in common with a drawn decision, or with a limit in it, has its value: a field of that
// name which was added to both and not translated fails here as well.
func TestDecisionHasEveryField(t *testing.T) {
	for seed := range seeding.Draw(t, 200) {
		r := rand.New(rand.NewPCG(seed, 1))
		flag := func() bool { return r.IntN(2) == 0 }
		wait := func() time.Duration {
			return []time.Duration{0, time.Duration(r.Int64N(1e12)), limit.Never}[r.IntN(3)]
		}
		d := limit.Decision{Allowed: flag(), Repeated: flag(), Permit: r.Uint64(), Delay: time.Duration(r.Int64N(2) * 1e6), Status: 429}
		for range 1 + r.IntN(3) {
			one := limit.Result{
				Limit: "limit", Quota: r.Int64N(1000), Cost: r.Int64N(1000), Soft: flag(), Shadow: flag(), StoreFailed: flag(),
				Verdict: limit.Verdict{Allowed: flag(), Remaining: r.Int64N(1000), RetryAfter: wait(), ResetAfter: wait()},
			}
			if !one.Allowed {
				one.Reason = []limit.Reason{limit.ReasonRate, limit.ReasonStoreFailure, limit.ReasonBanned}[r.IntN(3)]
			}
			d.Results = append(d.Results, one)
		}
		got := decision(&d)
		if d.Allowed {
			d.Status = 0 // of a refusal
		}
		translated(t, seed, got, d, nil)
		for i, one := range d.Results {
			translated(t, seed, got.Limits[i], one, map[string]any{"Name": one.Limit})
		}
	}
	unlimited := decision(&limit.Decision{Allowed: true, Results: []limit.Result{{Quota: math.MaxInt64, Verdict: limit.Verdict{Remaining: 7}}}}).Limits[0]
	if !unlimited.Unlimited || unlimited.Quota != 0 || unlimited.Remaining != 0 {
		t.Errorf("an unlimited policy: %v", unlimited)
	}
}

// translated compares the plain fields of a message with those of the same name. named has the values of fields that have
// other names.
func translated(t *testing.T, seed uint64, message, from any, named map[string]any) {
	t.Helper()
	m, of := reflect.ValueOf(message).Elem(), reflect.ValueOf(from)
	for i := range m.NumField() {
		name := m.Type().Field(i).Name
		value := of.FieldByName(name)
		var want any
		switch other, ok := named[name]; {
		case ok:
			want = other
		case !m.Type().Field(i).IsExported() || !value.IsValid() || value.Kind() == reflect.Slice || value.Kind() == reflect.Pointer:
			continue
		default:
			want = value.Interface()
		}
		got := m.Field(i).Interface()
		switch v := want.(type) {
		case limit.Reason:
			want = v.String()
		case time.Duration:
			wait, _ := got.(*durationpb.Duration)
			if got = wait.AsDuration(); wait == nil && name != "Delay" {
				got = limit.Never
			}
		case int:
			want = int32(v)
		}
		if got != want {
			t.Errorf("seed %d: %T has %s %v, want %v", seed, message, name, got, want)
		}
	}
}
