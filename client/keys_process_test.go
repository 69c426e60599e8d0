//go:build linux

package client_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/rules"
)

var keyShards = flag.Int("shards", 1, "among how many coordinators TestKeysThroughAMember divides its keys")

var manyKeys = flag.Int("keys", 2000, "keys of the tests with many keys; the evidence has 100000")

// TestKeysThroughAMember: three members with a real etcd, all processes of their own. 64 requests are in
// flight to a member that does not lead, or leads some of the shards: the first of each key, then random ones, then one hot key.
func TestKeysThroughAMember(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	t.Parallel()
	const config = "limits: [{name: per-user, key: [user], rate: 10/hour, burst: 1000000, sharing: leased}]\n"
	n := newNodes(t, config)
	for _, m := range n.all {
		m.env = append(m.env, fmt.Sprint("STINT_TEST_SHARDS=", *keyShards))
	}
	n.start()
	leader, member := n.all[1], n.all[0]
	if *keyShards > 1 {
		n.spread(*keyShards)
	} else if leader = n.leader(nil); member == leader {
		member = n.all[1]
	}
	load := newKeyLoad(t, member.address)
	load.ask("warm")
	phase := func(what string, calls int, key func(int) string) float64 {
		before := [2]float64{timeTaken(t, member.process), timeTaken(t, leader.process)} // with shards of one other
		r := load.run(calls, key)
		after := [2]float64{timeTaken(t, member.process), timeTaken(t, leader.process)}
		micros := func(i int) float64 { return (after[i] - before[i]) / float64(calls) * 1e6 }
		t.Logf("%s: %.0f/s; p50 %v, p99 %v, longest %v; %d of %d not admitted; processor time per request %.0f µs of the member, %.0f µs of the leader",
			what, r.perSecond, r.p50, r.p99, r.longest, len(r.refused), calls, micros(0), micros(1))
		if len(r.refused) > calls/100 {
			t.Errorf("%s: %d of %d requests within their limits were not admitted", what, len(r.refused), calls)
		}
		for _, k := range slices.Compact(slices.Sorted(slices.Values(r.refused))) {
			load.ask(k) // an answer that a busy machine delays for too long is a refusal; the next one is not
		}
		return r.perSecond
	}
	user := func(i int) string { return "user-" + strconv.Itoa(i) }
	empty := n.memory()
	phase("the first request of each key", *manyKeys, user)
	t.Logf("%.0f bytes of memory for each key, of all members together, of which the collector has not freed all that it can", (n.memory()-empty)/float64(*manyKeys))
	phase("random keys", *manyKeys, func(int) string { return user(rand.IntN(*manyKeys)) })
	// One hot key spends at most its limit, so few keys that take turns stand for it.
	phase("16 hot keys", 2**manyKeys, func(i int) string { return user(i % 16) })
	if *keyShards == 1 {
		load.direct = askDirectly(t, leader.address, config)
		phase("16 other hot keys, a call to the leader for each request", *manyKeys, func(i int) string { return "other-" + strconv.Itoa(i%16) })
	}
}

// askDirectly returns what asks the leader for a token of a key, one in each call, over 8 connections.
func askDirectly(t *testing.T, address, config string) func(w int, key string) (admitted bool, err error) {
	set, err := rules.Parse("test", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	var leaders []leasepb.LeasesClient
	for range 8 {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		leaders = append(leaders, leasepb.NewLeasesClient(conn))
	}
	return func(w int, key string) (bool, error) {
		encoded, _ := set.Limits()[0].KeyOf(key)
		m, err := leaders[w%len(leaders)].Ask(t.Context(), &leasepb.Asks{Asks: []*leasepb.Question{{Limit: "per-user", Key: encoded, Cost: 1_000_000}}})
		return err == nil && m.Answers[0].Admitted, err
	}
}

// memory is how many bytes all members have resident.
func (n *nodes) memory() (sum float64) {
	for _, m := range n.all {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.process.cmd.Process.Pid))
		if err != nil {
			n.t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "VmRSS:")
		var kilobytes float64
		if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
			n.t.Fatal(err)
		}
		sum += kilobytes * 1024
	}
	return sum
}

// TestDrainedKeysStayDrained: the buckets of many keys are used up through a member that does not lead, and
// a member is killed, the leader or that one. No bucket has tokens again, whichever member is asked, and
// a key of a limit that refills is served soon. A key that nobody has used has all of its burst.
func TestDrainedKeysStayDrained(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	t.Parallel()
	for _, leads := range []bool{true, false} {
		t.Run(fmt.Sprintf("killed-leads=%v", leads), func(t *testing.T) {
			t.Parallel()
			const burst = 3
			keys := min(*manyKeys/4, 3000)
			n := newNodes(t, fmt.Sprintf("limits: [{name: per-user, key: [user], rate: 1/hour, burst: %d, sharing: leased, on_store_failure: reject}, {name: other, key: [other], rate: 1000/s, burst: 10, sharing: leased, on_store_failure: reject}]\n", burst))
			n.start()
			leader := n.leader(nil)
			var others []*node
			for _, m := range n.all {
				if m != leader {
					others = append(others, m)
				}
			}
			killed, asked := leader, others[0]
			if !leads {
				killed, asked = others[0], others[1]
			}
			through := newKeyLoad(t, others[0].address)
			after := newKeyLoad(t, asked.address)
			through.askFor("other", "warm")
			after.askFor("other", "warm as well")
			user := func(i int) string { return "user-" + strconv.Itoa(i%keys) }
			admitted := 0
			for drained := false; !drained; {
				// A busy machine answers some requests too late, which are refused: so once more, until nothing passes.
				r := through.run(burst*keys, user)
				admitted += burst*keys - len(r.refused)
				drained = len(r.refused) == burst*keys
			}
			if admitted != burst*keys {
				t.Errorf("%d requests were admitted, want %d", admitted, burst*keys)
			}
			killed.kill()
			began := time.Now()
			after.askFor("other", "new")
			t.Logf("a new key of another limit is served %v after the kill", time.Since(began))
			if r := after.run(keys, user); len(r.refused) != keys {
				t.Errorf("%d of %d drained keys have tokens again", keys-len(r.refused), keys)
			}
			fresh := func(i int) string { return "new-" + strconv.Itoa(i%keys) }
			began = time.Now()
			had := map[string]int{}
			for admitted = 0; admitted < burst*keys && time.Since(began) < 20*time.Second; {
				// What came too late for its request is there for the next one.
				for i := range burst * keys {
					had[fresh(i)]++
				}
				r := after.run(burst*keys, fresh)
				for _, k := range r.refused {
					had[k]--
				}
				admitted += burst*keys - len(r.refused)
			}
			t.Logf("%d requests of %d new keys are admitted %v later", admitted, keys, time.Since(began))
			if r := after.run(keys, fresh); admitted != burst*keys || len(r.refused) != keys {
				by := map[int]int{}
				for _, n := range had {
					by[n]++
				}
				t.Errorf("%d requests of %d new keys were admitted, and %d more, want %d each; keys by what they had: %v", admitted, keys, keys-len(r.refused), burst, by)
			}
		})
	}
}

// keyLoad has 64 requests in flight, over 8 connections.
type keyLoad struct {
	t     *testing.T
	conns []rls.RateLimitServiceClient
	// direct decides instead of these; nil = they do.
	direct func(w int, key string) (admitted bool, err error)
}

func newKeyLoad(t *testing.T, address string) *keyLoad {
	t.Helper()
	l := &keyLoad{t: t}
	for range 8 {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		l.conns = append(l.conns, rls.NewRateLimitServiceClient(conn))
	}
	return l
}

// ask sends requests for a key until one is admitted: the member may not be connected to the leader yet.
func (l *keyLoad) ask(key string) {
	l.t.Helper()
	l.askFor("user", key)
}

func (l *keyLoad) askFor(attribute, value string) {
	l.t.Helper()
	await(l.t, "an admission", func() bool {
		reply, err := l.conns[0].ShouldRateLimit(l.t.Context(), keyRequest(attribute, value))
		return err == nil && reply.GetOverallCode() == rls.RateLimitResponse_OK
	})
}

func keyRequest(attribute, value string) *rls.RateLimitRequest {
	return &rls.RateLimitRequest{Domain: "keys", Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: attribute, Value: value}}}}}
}

type keyResult struct {
	perSecond float64
	refused   []string // their keys
	p50, p99  time.Duration
	longest   time.Duration
}

// decide sends a request.
func (l *keyLoad) decide(w int, user string) (admitted bool, err error) {
	if l.direct != nil {
		return l.direct(w, user)
	}
	reply, err := l.conns[w%len(l.conns)].ShouldRateLimit(context.Background(), keyRequest("user", user))
	return err == nil && reply.GetOverallCode() == rls.RateLimitResponse_OK, err
}

// run sends calls requests; key names that of each.
func (l *keyLoad) run(calls int, key func(int) string) keyResult {
	const inFlight = 64
	var next atomic.Int64
	var mu sync.Mutex
	var refused []string
	var all sync.WaitGroup
	took := make([]time.Duration, calls)
	begin := time.Now()
	for w := range inFlight {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < calls; i = int(next.Add(1)) - 1 {
				user, sent := key(i), time.Now()
				admitted, err := l.decide(w, user)
				took[i] = time.Since(sent)
				if err != nil {
					l.t.Errorf("%s: %v", user, err)
					return
				}
				if !admitted {
					mu.Lock()
					refused = append(refused, user)
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	elapsed := time.Since(begin)
	slices.Sort(took)
	return keyResult{perSecond: float64(calls) / elapsed.Seconds(), refused: refused, p50: took[calls/2], p99: took[calls*99/100], longest: took[calls-1]}
}

// timeTaken is how many seconds of processor time a process has taken.
func timeTaken(t *testing.T, p *process) float64 {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	ticks := 0
	for _, f := range fields[11:13] { // user and system
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return float64(ticks) / 100
}
