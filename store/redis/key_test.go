package redis

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// keyOf is the key in Redis of one bucket.
func keyOf(prefix string, k kind, id string, key []byte) string {
	return string(appendKey([]byte(keyHead(prefix, k, id)), key))
}

// checkKey checks what is true of every key.
func checkKey(t *testing.T, id string, key []byte) {
	t.Helper()
	got := keyOf(DefaultPrefix, kindBucket, id, key)
	if i := strings.IndexFunc(got, func(c rune) bool { return c <= ' ' || c >= 0x7f }); i >= 0 {
		t.Errorf("the key of %q, %q is %q: its byte %d is not plain", id, key, got, i)
	}
	if strings.Count(got, "{") != 1 || strings.Count(got, "}") != 1 || !strings.HasSuffix(got, "}") {
		t.Errorf("the key of %q, %q is %q, want one pair of braces, the second at the end", id, key, got)
	}
	if most := len(keyHead(DefaultPrefix, kindBucket, id)) + maxKey + 1; len(got) > most {
		t.Errorf("the key of %q and %d bytes has %d bytes, want at most %d", id, len(key), len(got), most)
	}
}

// FuzzKey: two buckets never have the same key, however the values are written.
func FuzzKey(f *testing.F) {
	long := strings.Repeat("x", maxKey)
	for _, seed := range [][4]string{
		{"a", "b", "a", "b"},
		{"a:b", "c", "a", "b:c"},
		{"a", "%20", "a", " "},
		{"a", "{", "a", "%7b"},
		{"a}", "{b", "a", "}{b"},
		{"a", "#x", "a", "x"},
		{"a%3a", "", "a:", ""},
		{"é", "\x00\xff", "é", "\x00\xfe"},
		{"a", long, "a", long + "x"},
		{"a", long + "x", "a", long + "y"},
		{"a", long[1:] + "%", "a", long[1:] + "%25"},
		{"a", strings.Repeat("\x00", maxKey/3), "a", strings.Repeat("%00", maxKey/3)},
	} {
		f.Add(seed[0], []byte(seed[1]), seed[2], []byte(seed[3]))
	}
	f.Fuzz(func(t *testing.T, id1 string, key1 []byte, id2 string, key2 []byte) {
		checkKey(t, id1, key1)
		checkKey(t, id2, key2)
		same := id1 == id2 && string(key1) == string(key2)
		one, two := keyOf(DefaultPrefix, kindBucket, id1, key1), keyOf(DefaultPrefix, kindBucket, id2, key2)
		if (one == two) != same {
			t.Errorf("%q %q and %q %q: the keys are %q and %q", id1, key1, id2, key2, one, two)
		}
		if one == keyOf(DefaultPrefix, kindFixed, id1, key1) {
			t.Errorf("%q %q: two kinds of arithmetic have the same key", id1, key1)
		}
	})
}

// TestKeyIsInjective: neighbours of one key, by a byte that is changed, moved or
// left out, have other keys, short and long.
func TestKeyIsInjective(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := seeding.Rand(t)
	seen := map[string]string{}
	add := func(id string, key []byte) {
		checkKey(t, id, key)
		what, got := fmt.Sprintf("%q %q", id, key), keyOf(DefaultPrefix, kindBucket, id, key)
		if other, ok := seen[got]; ok && other != what {
			t.Fatalf("%s and %s have the same key %s", what, other, got)
		}
		seen[got] = what
	}
	odd := []byte(":{}%# \x00\x7f\xff0a")
	for range 4000 {
		id, key := make([]byte, 1+r.IntN(4)), make([]byte, []int{r.IntN(5), maxKey - 2 + r.IntN(5), maxKey / 3, 1000}[r.IntN(4)])
		for _, b := range [][]byte{id, key} {
			for i := range b {
				b[i] = odd[r.IntN(len(odd))]
			}
		}
		add(string(id), key)
		add(string(append(id, ':')), key)
		add(string(id[:len(id)-1]), append(id[len(id)-1:], key...))
		if len(key) > 0 {
			add(string(id), key[1:])
			key[r.IntN(len(key))] ^= 1
			add(string(id), key)
		}
	}
	if len(seen) < 8000 {
		t.Fatalf("only %d keys were compared", len(seen))
	}
}

// TestLongestReadableKey: values of up to 160 bytes, escaped, stay readable, longer ones are
// hashed.
func TestLongestReadableKey(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for n, readable := range map[int]bool{0: true, 1: true, maxKey - 1: true, maxKey: true, maxKey + 1: false, 10 * maxKey: false} {
		text := strings.Repeat("k", n)
		if got := keyOf(DefaultPrefix, kindBucket, "id", []byte(text)); (got == DefaultPrefix+"1:{b:id:"+text+"}") != readable || readable == strings.Contains(got, "#") {
			t.Errorf("%d bytes: %s, want readable %v", n, got, readable)
		}
	}
	for spaces, readable := range map[int]bool{maxKey / 3: true, maxKey/3 + 1: false} {
		if got := keyOf(DefaultPrefix, kindBucket, "id", []byte(strings.Repeat(" ", spaces))); strings.Contains(got, "#") == readable {
			t.Errorf("%d spaces: %s, want readable %v", spaces, got, readable)
		}
	}
}

// TestSlot: all keys of a bucket are in the slot that a node of a cluster says.
func TestSlot(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	server := redistest.Start(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
	r := seeding.Rand(t)
	prefixes := []string{DefaultPrefix, "", "p", "a:b:", "{a}", "{", "}", "{}", "x{y"}
	for i := range 600 {
		prefix := prefixes[i%len(prefixes)]
		o := Options{Addrs: []string{server.Addr()}, Prefix: prefix}
		if o.complete() != nil {
			continue // such a prefix is refused
		}
		key := make([]byte, r.IntN(300))
		for j := range key {
			key[j] = byte(r.Uint32())
		}
		got := keyOf(o.Prefix, kind(1+r.IntN(5)), fmt.Sprintf("limit-%d", r.IntN(100)), store.AppendKey(nil, string(key)))
		for _, suffix := range []string{"", ":h", ":probe"} {
			if want := server.Int("CLUSTER", "KEYSLOT", got+suffix); int64(slot(got)) != want {
				t.Fatalf("slot(%q) is %d, the server says %d with the suffix %q", got, slot(got), want, suffix)
			}
		}
	}
}

// TestExpiry: by the clock of the server, a key lives until it is as good as new and a
// second or two longer, and no key stays for ever but those of buckets that never
// refill.
func TestExpiry(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	server := redistest.Start(t)
	s := connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient}, nil)
	r := seeding.Rand(t)
	for i, p := range []limit.Policy{
		{Rate: limit.PerMinute(5), Burst: 5},
		{Rate: limit.Rate{Count: 999_983, Period: 86_400 * time.Second}, Burst: 999_983},
		{Rate: limit.Rate{Count: 1, Period: 365 * 24 * time.Hour}, Burst: 3},
		{Algorithm: limit.LeakyBucket, Rate: limit.PerHour(7), Burst: 20},
		{Algorithm: limit.FixedWindow, Rate: limit.PerHour(5)},
		{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 5, Period: maxSpan * time.Microsecond}, Align: limit.AlignFirstHit, Ban: maxSpan * time.Microsecond},
		{Algorithm: limit.FixedWindow, Rate: limit.PerHour(5), Align: limit.AlignFirstHit, CountRefused: true, Ban: time.Hour},
		{Algorithm: limit.SlidingWindowCounter, Rate: limit.PerHour(5)},
		{Algorithm: limit.SlidingWindowCounter, Rate: limit.PerHour(5), CountRefused: true},
		{Algorithm: limit.SlidingWindowLog, Rate: limit.PerHour(5)},
		{Algorithm: limit.SlidingWindowLog, Rate: limit.PerHour(5), CountRefused: true},
		{Algorithm: limit.Concurrency, MaxInFlight: 5, Timeout: time.Hour},
		{Burst: 5},
	} {
		c, err := s.Bind(store.Spec{ID: fmt.Sprintf("expiry-%d", i), Policy: p})
		if err != nil {
			t.Fatal(err)
		}
		for range 60 {
			one := []store.Charge{{Counters: c, Key: keyNumber(r.IntN(3)), Cost: 1 + r.Int64N(3), Permit: r.Uint64N(9)}}
			q := request{verb: []verb{verbTake, verbTake, verbTake, verbPeek, verbRefund, verbFinish, verbReset}[r.IntN(7)], charges: one}
			if _, err := q.ask(s); err != nil {
				t.Fatal(err)
			}
			checkExpiry(t, server, s, one[0], p)
		}
	}
	for _, key := range keysOf(t, server) {
		if ttl := server.Int("PTTL", key); ttl == -1 && !strings.Contains(key, ":expiry-12:") {
			t.Errorf("%s never expires", key)
		}
	}
}

// checkExpiry compares how long a key lives with when it is as good as new.
func checkExpiry(t *testing.T, server *redistest.Server, s *Store, c store.Charge, p limit.Policy) {
	t.Helper()
	key := s.keyOfCharge(c)
	one := []store.Charge{c}
	one[0].Cost = 0
	began := time.Now()
	if _, err := s.Peek(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	reset := one[0].Verdict.ResetAfter
	keys := []string{key}
	if p.Algorithm == limit.Concurrency {
		keys = append(keys, key+":h")
	}
	for _, key := range keys {
		ttl := server.Int("PTTL", key)
		passed := time.Since(began)
		switch left := time.Duration(ttl) * time.Millisecond; {
		case reset == limit.Never && ttl != -1:
			t.Errorf("%s: PTTL is %d under %+v, want -1: it never refills", key, ttl, p)
		case reset == 0, reset == limit.Never:
		case ttl < 0:
			t.Errorf("%s: PTTL is %d under %+v, and it is as good as new in %v", key, ttl, p, reset)
		case left < reset-passed || left > reset+2100*time.Millisecond:
			t.Errorf("%s lives for %v under %+v, want %v and at most two seconds", key, left, p, reset)
		}
	}
}

// keysOf lists all keys of a server.
func keysOf(t *testing.T, server *redistest.Server) []string {
	t.Helper()
	reply := server.Do("KEYS", "*")
	keys, err := reply.AsStrSlice()
	if err != nil || len(keys) < 20 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	return keys
}

// keyOfCharge is the key in Redis of a charge's bucket.
func (s *Store) keyOfCharge(c store.Charge) string {
	return string(appendKey([]byte(c.Counters.(*Counters).bound.Load().head), c.Key))
}

// TestGarbage: a key that holds what no store wrote is an error or a new key, for
// its own requests. Others in the same run of the script are decided once.
func TestGarbage(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	h := newHistory(t, nil)
	numbers := func(list ...float64) string {
		var b []byte
		for _, f := range list {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
		}
		return string(b)
	}
	values := map[string]func(scalars int, tag string) []string{
		"list": func(int, string) []string { return []string{"RPUSH", "KEY", "x", "y"} },
		"hash": func(int, string) []string { return []string{"HSET", "KEY", "u", "x"} },
		"set":  func(int, string) []string { return []string{"ZADD", "KEY", "1", "x"} },
		"text": func(int, string) []string { return []string{"SET", "KEY", "x"} },
		"none": func(int, string) []string { return []string{"SET", "KEY", ""} },
		"long": func(_ int, tag string) []string { return []string{"SET", "KEY", strings.Repeat("\xff", 500) + tag} },
		"tag":  func(_ int, tag string) []string { return []string{"SET", "KEY", tag} },
	}
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, -1 << 63, 0.5, 1e15 + 0.5, 1 << 53, 1 << 62, latest, 1 << 200, 1e300, -1e300} {
		values[fmt.Sprint("numbers ", f)] = func(n int, tag string) []string {
			return []string{"SET", "KEY", numbers([]float64{f, f, f}[:n]...) + tag}
		}
		values[fmt.Sprint("count ", f)] = func(n int, tag string) []string {
			return []string{"SET", "KEY", numbers([]float64{1e6, f, f}[:n]...) + tag}
		}
		values[fmt.Sprint("first ", f)] = func(n int, tag string) []string {
			return []string{"SET", "KEY", numbers([]float64{f, 1, 1}[:n]...) + tag}
		}
		values[fmt.Sprint("another's ", f)] = func(n int, tag string) []string {
			other := []byte(tag)
			if len(other) > 0 {
				other[0]++
			}
			return []string{"SET", "KEY", numbers([]float64{f, f, f}[:n]...) + string(other)}
		}
	}
	for i, p := range []limit.Policy{
		{Rate: limit.PerHour(7), Burst: 7},
		{Burst: 7},
		{Algorithm: limit.FixedWindow, Rate: limit.PerHour(7)},
		{Algorithm: limit.FixedWindow, Rate: limit.PerHour(7), Align: limit.AlignFirstHit, CountRefused: true, Ban: time.Hour},
		{Algorithm: limit.SlidingWindowCounter, Rate: limit.PerHour(7)},
		{Algorithm: limit.SlidingWindowCounter, Rate: limit.PerHour(7), Rounding: limit.RoundNearest, CountRefused: true},
		{Algorithm: limit.SlidingWindowLog, Rate: limit.PerHour(7)},
		{Algorithm: limit.Concurrency, MaxInFlight: 7, Timeout: time.Hour},
	} {
		for _, name := range slices.Sorted(maps.Keys(values)) {
			t.Run(fmt.Sprintf("%v-%d/%s", p.Algorithm, i, name), func(t *testing.T) {
				h.T = t
				for _, several := range []bool{false, true} {
					h.seed++
					h.besideGarbage(p, several, values[name])
				}
			})
		}
	}
}

// besideGarbage takes once from each of some limits, and from one whose key holds
// what write says, in one run of the script; from that one alone, or from several at once.
func (h *history) besideGarbage(p limit.Policy, several bool, write func(scalars int, tag string) []string) {
	h.Helper()
	defer func() {
		if r := recover(); r != nil {
			h.Errorf("panic: %v", r)
		}
	}()
	h.begin("garbage", p,
		limit.Policy{Rate: limit.PerHour(9), Burst: 9},
		limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerHour(9)},
		limit.Policy{Algorithm: limit.SlidingWindowLog, Rate: limit.PerHour(9)},
		limit.Policy{Algorithm: limit.Concurrency, MaxInFlight: 9, Timeout: time.Hour})
	var sound []*request
	for i, l := range h.limits[1:] {
		q := &request{verb: verbTake, charges: []store.Charge{h.charge(l, 0, 1)}}
		q.charges[0].Permit = uint64(i)
		q.models = h.modelsOf(q.charges)
		q.expect(h.now())
		sound = append(sound, q)
	}
	odd := &request{verb: verbTake, charges: []store.Charge{h.charge(h.limits[0], 0, 1)}}
	if several { // beside a sound one that it costs nothing
		odd.charges = append(odd.charges, h.charge(h.limits[1], 2, 0))
		slices.Reverse(odd.charges)
	}
	rule := h.limits[0].counters.(*Counters).bound.Load().rule
	scalars := 2
	if rule.kind == kindSliding {
		scalars = 3
	}
	command := write(scalars, rule.tag)
	command[1] = h.store.keyOfCharge(odd.charges[len(odd.charges)-1])
	h.server.Do(command...)
	ops := []*operation{sound[0].operation(h.store), sound[3].operation(h.store), odd.operation(h.store), sound[1].operation(h.store), sound[2].operation(h.store)}
	together(h.lane, slices.Clone(ops))
	for i, q := range []*request{sound[0], sound[3], nil, sound[1], sound[2]} {
		if q != nil {
			ops[i].answer(q.charges)
			h.same(q, ops[i].allowed, ops[i].err)
		}
	}
	for _, q := range sound {
		for _, v := range []verb{verbPeek, verbFinish, verbPeek} {
			again := q.clone()
			again.verb, again.charges[0].Cost = v, 0
			h.round([]*request{again})
		}
	}
	if err := ops[2].err; err != nil && !errors.Is(err, store.ErrUnavailable) {
		h.Errorf("the error of the key itself, %v, is not that of a store", err)
	}
	if err := h.store.Ready(); err != nil || h.lane.breaker.open.Load() {
		h.Errorf("one key has opened the breaker: %v", err)
	}
}
