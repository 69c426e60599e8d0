package rls

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// request draws a request. No two of its descriptors share a counter: those are
// decided together here, and one after the other by Envoy's service.
func (r drawing) request(m *model) *pb.RateLimitRequest {
	req := &pb.RateLimitRequest{Domain: pickOf(r.Rand, "edge", "edge", "edge", "edge", "nowhere")}
	if r.one(2) {
		req.HitsAddend = uint32(r.IntN(4))
	}
	counters := map[string]bool{}
	for range 1 + r.IntN(4) {
		d := &ratelimitv3.RateLimitDescriptor{}
		for range 1 + r.IntN(3) {
			d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{
				Key: pickOf(r.Rand, "a", "b", "c", "cd"), Value: pickOf(r.Rand, "x", "xy", "xzy", "y", "z", "x*", ""),
			})
		}
		if r.one(4) {
			d.HitsAddend = wrapperspb.UInt64(uint64(pickOf(r.Rand, 0, 0, 1, 2, 7, 1<<33)))
		}
		// A descriptor has the same override each time, or none.
		h := fnv.New32()
		fmt.Fprint(h, d.Entries)
		if n := h.Sum32(); n%5 == 0 {
			d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: n / 5 % 4, Unit: typev3.RateLimitUnit_SECOND + typev3.RateLimitUnit(n/20%6),
			}
		}
		if l := m.find(req.Domain, d); l != nil && counters[l.counter] {
			continue
		} else if l != nil {
			counters[l.counter] = true
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

func drawModel(r drawing) *model {
	root := &modelRule{Descriptors: r.rules("edge", 1)}
	return &model{
		domains: map[string]*modelRule{"edge": root}, counts: map[string]uint64{}, near: map[string]uint64{},
		quota: r.one(4), shadow: r.one(6), admittedOnly: r.one(4),
	}
}

// serviceOf returns the service under the choices of a model.
func serviceOf(t testing.TB, m *model) (*Service, *tally.Table) {
	t.Helper()
	set, err := rules.Options{CountAdmitted: m.admittedOnly}.Parse("edge.yaml", []byte(m.domains["edge"].text("edge")))
	if err != nil {
		t.Fatal(err)
	}
	counts := tally.New(tally.Options{})
	e, err := engine.New(memory.New(memory.Options{MaxBytes: 1 << 22}), set, engine.Options{Quota: m.quota, Decisions: []engine.DecisionObserver{counts}})
	if err != nil {
		t.Fatal(err)
	}
	return New(e, Options{Headers: true, Metadata: true, Shadow: m.shadow}), counts
}

// Whatever rules a file in Envoy's format has and whatever comes in, at any time, the
// answer is that of Envoy's service: overall code, each status with its limit, what is
// left and until when, the header fields and the dynamic metadata; and as many hits
// are counted near their limits.
//
//	STINT_FILES=20000 go test ./server/internal/rls -run 'TestConformance$' -timeout 30m
func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	files, requests := 400, 60
	if n, err := strconv.Atoi(os.Getenv("STINT_FILES")); err == nil {
		files = n
	}
	for seed := range seeding.Draw(t, files) {
		synctest.Test(t, func(t *testing.T) {
			r := drawing{rand.New(rand.NewPCG(1, seed)), slices.Sorted(maps.Keys(modelUnits))}
			m := drawModel(r)
			s, counts := serviceOf(t, m)
			for i := range requests {
				time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
				if r.one(10) {
					time.Sleep(time.Duration(r.IntN(40*24*3600)) * time.Second)
				}
				req := r.request(m)
				want := m.answer(req, time.Now().Unix())
				got, err := s.ShouldRateLimit(t.Context(), req)
				if err != nil {
					t.Fatalf("file %d, request %d: %v", seed, i, err)
				}
				if diff := differs(got, want); diff != "" {
					t.Fatalf("file %d, request %d: %s\nmodes: quota %t, shadow %t, admitted only %t\nrules: %s\nrequest: %v\ngot: %v",
						seed, i, diff, m.quota, m.shadow, m.admittedOnly, m.domains["edge"].text("edge"), req, got)
				}
			}
			near := map[string]uint64{}
			for tally := range counts.Tallies() {
				if tally.NearLimit > 0 && tally.Limit != engine.OverrideName {
					near[tally.Limit] = tally.NearLimit
				}
			}
			if !maps.Equal(near, m.near) {
				t.Fatalf("file %d: near limits %v, want %v", seed, near, m.near)
			}
		})
	}
}

// differs says where an answer is not what the model says.
func differs(got *pb.RateLimitResponse, want *modelAnswer) string {
	if got.OverallCode != want.code {
		return fmt.Sprintf("overall %v, want %v", got.OverallCode, want.code)
	}
	if len(got.Statuses) != len(want.statuses) {
		return fmt.Sprintf("%d statuses, want %d", len(got.Statuses), len(want.statuses))
	}
	for i, st := range want.statuses {
		if !proto.Equal(got.Statuses[i], st) {
			return fmt.Sprintf("status %d: %v, want %v", i, got.Statuses[i], st)
		}
	}
	var fields []string
	for _, h := range got.ResponseHeadersToAdd {
		if h.Key != headerRetryAfter {
			fields = append(fields, h.Key+"="+h.Value)
		} else if want.code == pb.RateLimitResponse_OK {
			return "Retry-After with an OK"
		}
	}
	if h := want.headers(); !slices.Equal(fields, h) {
		return fmt.Sprintf("header fields %q, want %q", fields, h)
	}
	m := got.DynamicMetadata.AsMap()
	delete(m, "stint") // what Envoy's service does not have
	if !reflect.DeepEqual(m, want.metadata) {
		return fmt.Sprintf("metadata %v, want %v", m, want.metadata)
	}
	return ""
}
