package lending

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/alone"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/rules"
)

// opened is a stream that says which shard it is for, and nothing else.
type opened struct {
	grpc.BidiStreamingServer[leasepb.Report, leasepb.Grant]
	ctx context.Context
}

func (s opened) Context() context.Context { return s.ctx }

// TestShardsThatAreNot: a stream for what is no shard ends at once, and says what to do.
func TestShardsThatAreNot(t *testing.T) {
	set, err := rules.Parse("test", []byte("limits: [{name: l, rate: 1/s, sharing: leased}]"))
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Limits: set, Logger: slog.New(slog.DiscardHandler)}, 4)
	if s.Shards() != 4 {
		t.Fatalf("%d shards", s.Shards())
	}
	for shard, want := range map[string]codes.Code{
		"4": codes.FailedPrecondition, "-1": codes.FailedPrecondition, "64": codes.FailedPrecondition,
		"x": codes.InvalidArgument, "": codes.InvalidArgument, "1e1": codes.InvalidArgument,
	} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(client.ShardHeader, shard))
		if err := s.Hold(opened{ctx: ctx}); status.Code(err) != want {
			t.Errorf("shard %q: %v, want %v", shard, err, want)
		}
	}
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(client.ShardHeader, "1", client.ShardHeader, "2"))
	if err := s.Hold(opened{ctx: ctx}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("two shards: %v", err)
	}
}

// TestYield: a member yields a scope to the one that should lead it among those alive, the former holder
// apart, unless that is itself.
func TestYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := alone.New()
		ctx, cancel := context.WithCancel(t.Context())
		var all []cluster.Member
		var presences []*cluster.Presence
		for i := range 3 {
			m := cluster.Member{ID: fmt.Sprint("n", i)}
			p := cluster.NewPresence(cluster.PresenceOptions{Register: r, Self: m})
			go p.Run(ctx)
			all, presences = append(all, m), append(presences, p)
		}
		time.Sleep(5 * time.Second)
		for shard := range 16 {
			scope := Scope(shard, 16)
			for holder := -1; holder < len(all); holder++ {
				var rest []cluster.Member
				name := ""
				for i, m := range all {
					if i != holder {
						rest = append(rest, m)
					} else {
						name = m.ID
					}
				}
				for i, m := range all {
					among := rest
					if i == holder {
						among = all
					}
					preferred, _ := cluster.Preferred(among, scope)
					s := &spread{presences[i], m}
					if got, want := s.yield(scope, name), preferred != m; got != want {
						t.Errorf("%s, held by %q: %s yields %v, want %v", scope, name, m.ID, got, want)
					}
				}
			}
		}
		cancel()
		synctest.Wait()
	})
}

// TestSumOfShards: each figure of a limit is the sum of its shards, the longest, or the worst of them.
func TestSumOfShards(t *testing.T) {
	a := LimitFigures{Limit: "l", Capacity: 1, Lent: 2, Wanted: 3, Free: 4, SaturatedSeconds: 5, Resources: 6, SaturatedResources: 7, Reject: 0.25}
	b := LimitFigures{Limit: "l", Capacity: 10, Lent: 20, Wanted: 30, Free: 40, Saturated: true, SaturatedSeconds: 2, Resources: 60, SaturatedResources: 70, Suppressed: true, Reject: 0.5}
	want := LimitFigures{Limit: "l", Capacity: 11, Lent: 22, Wanted: 33, Free: 44, Saturated: true, SaturatedSeconds: 5, Resources: 66, SaturatedResources: 77, Suppressed: true, Reject: 0.5}
	if got := addLimit(a, b); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := addLimit(addLimit(LimitFigures{}, b), a); got != want {
		t.Errorf("the other way round %+v, want %+v", got, want)
	}
}

// TestFiguresOfShards: each figure is the sum over the shards, but instances have a stream to each of them, and one shard
// that recovers is enough.
func TestFiguresOfShards(t *testing.T) {
	fill := func(unit uint64) *Figures {
		f := &Figures{}
		v := reflect.ValueOf(f).Elem()
		for i := range v.NumField() {
			switch n := unit * uint64(i+1); v.Field(i).Kind() {
			case reflect.Int:
				v.Field(i).SetInt(int64(n))
			case reflect.Uint64:
				v.Field(i).SetUint(n)
			}
		}
		return f
	}
	a, b, want := fill(1), fill(100), fill(101)
	a.Refused, b.Refused, want.Refused = map[string]uint64{"x": 1}, map[string]uint64{"x": 2, "y": 3}, map[string]uint64{"x": 3, "y": 3}
	b.Recovering, want.Recovering, want.Instances = true, true, b.Instances
	s := &Service{all: []*shard{{}, {}}}
	s.all[0].figures.Store(a)
	s.all[1].figures.Store(b)
	if got := s.Figures(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
