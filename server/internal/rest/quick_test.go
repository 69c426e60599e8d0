package rest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/limit"
)

var takeFields = []string{"attributes", "cost", "count_refused", "queue", "domain", "descriptors"}

// agrees: what quick accepts, parse accepts with the same result.
func agrees(t *testing.T, src []byte) (accepted bool) {
	t.Helper()
	var got body
	if !quick(src, &got) {
		return false
	}
	want, err := parse(src, takeFields...)
	if err != nil {
		t.Errorf("quick accepts %q, parse says %v", src, err)
	} else if !reflect.DeepEqual(got, want) {
		t.Errorf("%q: quick reads %+v, parse %+v", src, got, want)
	}
	return true
}

// TestQuickWalk: what is read without the strict parser, and what is left to it.
func TestQuickWalk(t *testing.T) {
	long := strings.Repeat("n", MaxNameLength)
	for src, want := range map[string]bool{
		`{}`:                                 true,
		`{"attributes":{}}`:                  true,
		` { "attributes" : { "a" : "b" } } `: true,
		"{\"attributes\":\n{\"user\":\"u\",\"ip\":\"192.0.2.7\",\"path\":\"/x\",\"method\":\"GET\",\"host\":\"h\",\"x\":\"\"},\t\"cost\":15}\r\n": true,
		`{"cost":0,"count_refused":true}`:             true,
		`{"cost":999999999999999}`:                    true,
		`{"count_refused":false}`:                     true,
		`{"attributes":{"` + long + `":"v"}}`:         true,
		`{"attributes":{"` + long + `n":"v"}}`:        false,
		`{"attributes":{"":"v"}}`:                     false,
		`{"attributes":{"a":"b","a":"c"}}`:            false,
		`{"attributes":{"a":"\u0062"}}`:               false,
		`{"attributes":{"a":"é"}}`:                    false,
		`{"attributes":{"a":1}}`:                      false,
		`{"attributes":{"a":"b",}}`:                   false,
		`{"attributes":{"a":"b"}`:                     false,
		`{"attributes":{"a":"b"}}}`:                   false,
		`{"attributes":{"a":"b"},"attributes":{}}`:    false,
		`{"cost":1000000000000000}`:                   false,
		`{"cost":01}`:                                 false,
		`{"cost":-1}`:                                 false,
		`{"cost":1.5}`:                                false,
		`{"cost":1e3}`:                                false,
		`{"cost":1,"cost":1}`:                         false,
		`{"cost":}`:                                   false,
		`{"count_refused":True}`:                      false,
		`{"count_refused":truefalse}`:                 false,
		`{"count_refused":true,"count_refused":true}`: false,
		`{"domain":"d"}`:                              false,
		`{,"cost":1}`:                                 false,
		`{"cost" 1}`:                                  false,
		``:                                            false,
		`[]`:                                          false,
		`{"a`:                                         false,
		`{"cost":1} x`:                                false,
		"{\"attributes\":{\"a\":\"b\x00\"}}":          false,
		"{\"attributes\":{\"a\":\"\n}}":               false,
	} {
		if got := agrees(t, []byte(src)); got != want {
			t.Errorf("%q: quick says %v, want %v", src, got, want)
		}
	}
	var many strings.Builder
	for i := range quickAttributes + 1 {
		fmt.Fprintf(&many, `,"a%d":"v"`, i)
		src := []byte(`{"attributes":{` + many.String()[1:] + `}}`)
		if got := agrees(t, src); got != (i < quickAttributes) {
			t.Errorf("%d attributes: quick says %v", i+1, got)
		}
	}
}

// FuzzQuick: whatever the body, what quick accepts, parse accepts with the same result.
func FuzzQuick(f *testing.F) {
	for _, src := range []string{`{"attributes":{"user":"u","ip":"192.0.2.7"},"cost":3,"count_refused":true}`, `{ "cost" : 0 }`, `{"attributes":{"a":"\\"}}`} {
		f.Add([]byte(src))
	}
	f.Fuzz(func(t *testing.T, src []byte) { agrees(t, src) })
}

// TestQuickAgrees: so it is with bodies made of the pieces of real ones.
func TestQuickAgrees(t *testing.T) {
	pieces := []string{`{`, `}`, `,`, `:`, `"attributes"`, `"cost"`, `"count_refused"`, `"a"`, `"b"`, `{"a":"b"}`, `{"user":"u"}`, `"cost":1`, `"cost":0`, `"count_refused":true`, `"attributes":{"a":"b","c":"d"}`, ` `, "\n", `1`, `true`, `false`, `"`, `\`, `"domain":"d"`, `"queue":true`, `é`}
	random, accepted := seeding.Rand(t), 0
	for range 200_000 {
		src := []byte{}
		if random.IntN(2) == 0 {
			src = append(src, '{')
		}
		for range random.IntN(7) {
			src = append(src, pieces[random.IntN(len(pieces))]...)
		}
		if random.IntN(2) == 0 {
			src = append(src, '}')
		}
		if agrees(t, src) {
			accepted++
		}
	}
	if accepted < 1000 {
		t.Errorf("%d bodies were accepted only: the pieces find too few", accepted)
	}
}

// TestAppendDecision: the encoder writes what json.Marshal writes, for every kind of value.
func TestAppendDecision(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	random := seeding.Rand(t)
	text := func() string {
		return []string{"", "per-user", "a.b", `q"\`, "<b>&", "é", "\x00\x1f\x7f", "\xff", "\u2028", strings.Repeat("long", 50)}[random.IntN(10)]
	}
	wait := func() time.Duration {
		return []time.Duration{0, 1, 10 * time.Millisecond, time.Second, 90 * time.Minute, 999_999_999, 1_000_000_001, limit.Never, limit.Never - 1, time.Duration(random.Int64N(int64(time.Hour)))}[random.IntN(10)]
	}
	number := func() int64 {
		return []int64{0, 1, 7, 10_000, math.MaxInt64, -3, random.Int64()}[random.IntN(7)]
	}
	flag := func() bool { return random.IntN(3) == 0 }
	for range 20_000 {
		d := limit.Decision{Allowed: flag(), Delay: max(0, wait())}
		if flag() {
			d.Permit, d.PermitFor = random.Uint64(), max(0, wait())
		}
		for range random.IntN(4) {
			r := limit.Result{
				Verdict: limit.Verdict{Allowed: flag(), Reason: limit.Reason(random.IntN(6)), Remaining: number(), RetryAfter: wait(), ResetAfter: wait()},
				Limit:   text(), Algorithm: limit.Algorithm(random.IntN(5)), Quota: number(), Nominal: number(), Window: wait(), Cost: number(),
				Soft: flag(), Shadow: flag(), StoreFailed: flag(), Tagged: flag(), Purpose: text(), Detail: text(),
			}
			if flag() {
				r.Nominal = r.Quota
			}
			d.Results = append(d.Results, r)
		}
		for range random.IntN(3) {
			d.Tags = append(d.Tags, limit.Attribute{Name: text(), Value: text()})
		}
		want, err := json.Marshal(newDecision(&d))
		if err != nil {
			t.Fatal(err)
		}
		if got := appendDecision([]byte("x"), &d); string(got) != "x"+string(want) {
			t.Fatalf("%+v:\ngot  %s\nwant %s", d, got[1:], want)
		}
	}
}

// TestReadBody: a body is read whole whether its length is announced, is not, or is above the room; one
// that ends early is an error, and one above the bound as well.
func TestReadBody(t *testing.T) {
	for _, tt := range []struct {
		name           string
		length, actual int
		want           bool
	}{
		{"empty", 0, 0, true},
		{"announced", 100, 100, true},
		{"as much as there is room", 1 << 10, 1 << 10, true},
		{"above the room", 1<<10 + 1, 1<<10 + 1, true},
		{"not announced", -1, 3000, true},
		{"the largest", MaxBodyBytes, MaxBodyBytes, true},
		{"too large", MaxBodyBytes + 1, MaxBodyBytes + 1, false},
		{"too large, not announced", -1, MaxBodyBytes + 1, false},
		{"ends early", 100, 99, false},
	} {
		src := bytes.Repeat([]byte("x"), tt.actual)
		r := httptest.NewRequest(http.MethodPost, "/v1/take", iotest.HalfReader(bytes.NewReader(src)))
		r.ContentLength = int64(tt.length)
		got, err := readBody(httptest.NewRecorder(), r, make([]byte, 0, 1<<10))
		if (err == nil) != tt.want || tt.want && !bytes.Equal(got, src) {
			t.Errorf("%s: read %d bytes, %v", tt.name, len(got), err)
		}
	}
}
