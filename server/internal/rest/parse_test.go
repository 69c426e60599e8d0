package rest

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stint-io/stint/limit"
)

func TestParse(t *testing.T) {
	b, err := parse([]byte(` { "cost" : 7 , "attributes" : { "b" : "2" , "a" : "1\u0041" } } `), "attributes", "cost")
	if err != nil {
		t.Fatal(err)
	}
	if b.request.Cost != 7 || b.request.Peek || len(b.request.Attributes) != 2 ||
		b.request.Attributes[0] != (limit.Attribute{Name: "b", Value: "2"}) || b.request.Attributes[1] != (limit.Attribute{Name: "a", Value: "1A"}) {
		t.Fatalf("%+v", b.request)
	}
	for src, want := range map[string]limit.Request{
		`{}`:                             {Cost: 1},
		`{"cost":0}`:                     {Cost: 1, Peek: true},
		`{"cost":4611686018427387904}`:   {Cost: limit.MaxCount},
		`{"attributes":{},"cost":00001}`: {},
	} {
		b, err := parse([]byte(src), "attributes", "cost")
		if want.Cost == 0 {
			if err == nil {
				t.Errorf("%s is taken", src)
			}
			continue
		}
		if err != nil || b.request.Cost != want.Cost || b.request.Peek != want.Peek {
			t.Errorf("%s: %+v, %v", src, b.request, err)
		}
	}
}

// A number without a fraction is whole however it is written, as in JSON Schema, at every call that takes one.
func TestWholeNumbers(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "-0": 0, "0.0": 0, "2": 2, "2.0": 2, "2.00e0": 2, "2e3": 2000, "2E+3": 2000, "0.002e3": 2, "120e-1": 12, "1.5e1": 15,
		"4611686018427387904": 1 << 62, "18446744073709551615": math.MaxUint64, "1e19": 1e19, "0.0e400": 0, "100e-2": 1,
	} {
		if got, ok := wholeNumber(text); !ok || got != want {
			t.Errorf("%s is %d, %v", text, got, ok)
		}
	}
	for _, text := range []string{"1.5", "-1", "-1.0", "1e-1", "15e-2", "1e20", "18446744073709551616", "1e400", "1e999999999", "1e-999999999", "1e99999999999999999999"} {
		if got, ok := wholeNumber(text); ok {
			t.Errorf("%s is %d", text, got)
		}
	}
	b, err := parse([]byte(`{"cost":2.0,"permit":3e0}`), "cost", "permit")
	if err != nil || b.request.Cost != 2 || b.permit != 3 {
		t.Errorf("%+v, %v", b, err)
	}
	var settled struct{ Actual *whole }
	w := httptest.NewRecorder()
	if !readExactly(w, []byte(`{"actual":2.0}`), &settled, "", "actual") || *settled.Actual != 2 {
		t.Errorf("%+v: %s", settled, w.Body)
	}
}

func TestPlaces(t *testing.T) {
	for src, want := range map[string]string{
		"{\n  \"cost\": 1,\n  \"x\": 1}":         `line 3, column 3: unknown field "x"`,
		"{\"attributes\":{\"ü\":\"ü\",\"b\":1}}": `line 1, column 28: the attribute "b" is a number`,
		"{\"cost\": -5}":                         `line 1, column 10: cost is -5`,
		"{\"cost\": 1,}":                         `line 1, column 12: the body is not JSON`,
		`{"attributes":{"a":"\ud800"}}`:          `line 1, column 20: a \u escape is half of a pair`,
		`{"attributes":{"a\udc00":"x"}}`:         `line 1, column 16: a \u escape is half of a pair`,
	} {
		_, err := parse([]byte(src), "attributes", "cost")
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", src, err, want)
		}
	}
}

func TestParseCountRefused(t *testing.T) {
	for src, want := range map[string]bool{
		`{"count_refused":true}`: true, `{"count_refused":false}`: false, `{}`: false,
	} {
		b, err := parse([]byte(src), "attributes", "cost", "count_refused")
		if err != nil || b.request.CountRefused != want || b.request.Cost != 1 {
			t.Errorf("%s: %+v, %v", src, b.request, err)
		}
	}
	_, err := parse([]byte(`{"count_refused":1}`), "count_refused")
	if err == nil || err.Error() != "line 1, column 18: count_refused is a number, want true or false" {
		t.Errorf("%v", err)
	}
}

// Whole pairs, and the replacement character where it is meant, are values like any
// other.
func TestEscapes(t *testing.T) {
	for src, want := range map[string]string{
		`"\ud83d\ude00"`: "\U0001F600", `"\uFFFD\ufffd"`: "\uFFFD\uFFFD", "\"\uFFFD\"": "\uFFFD", `"\u0000"`: "\x00",
	} {
		b, err := parse([]byte(`{"attributes":{"a":`+src+`}}`), "attributes")
		if err != nil || b.request.Attributes[0].Value != want {
			t.Errorf("%s: %+v, %v", src, b.request, err)
		}
	}
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0", 1: "0.000000001", time.Second: "1", 1500 * time.Millisecond: "1.5",
		90*time.Second + 10: "90.00000001", limit.Never: "null", limit.Never - 1: "9223372036.854775806",
	} {
		if got, err := json.Marshal(seconds(d)); err != nil || string(got) != want {
			t.Errorf("%d ns: %s, want %s", d, got, want)
		}
	}
}

// Whatever comes in, there is an answer; what is taken is within the bounds and
// means the same to a JSON parser.
func FuzzBody(f *testing.F) {
	seeds := []string{
		`{"attributes":{"ip":"192.0.2.7"},"cost":1}`, `{"cost":0,"permit":9007199254740991}`, `{}`, ``, `{"cost":1e9}`,
		`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"},{"value":"","key":"k"}],"cost":0}]}`, `{"descriptors":[]}`, `{"domain":"d","descriptors":[{"entries":[`,
		`{"attributes":{"a":"\ud800"}}`, "\xff", `[[[[`, `{"attributes":null}`, `{"cost":-0}`, `{"a":{}`, `{"cost":1,}`,
	}
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		b, err := parse(src, "attributes", "cost", "permit", "domain", "descriptors")
		if err != nil {
			place := (*parseError)(nil)
			if end := (*atEnd)(nil); errors.As(err, &end) {
				place = &end.parseError
			} else if !errors.As(err, &place) {
				t.Fatalf("an error without a place: %v", err)
			}
			if place.line < 1 || place.column < 1 || place.column > len(src)+1 || !utf8.ValidString(place.text) {
				t.Fatalf("%q: %+v", src, place)
			}
			return
		}
		if b.request.Cost < 1 || b.request.Cost > limit.MaxCount || len(b.request.Attributes) > MaxAttributes {
			t.Fatalf("%q: %+v", src, b.request)
		}
		var plain struct {
			Attributes  map[string]string
			Cost        *json.Number
			Domain      string
			Descriptors []struct {
				Entries []struct{ Key, Value string }
				Cost    *json.Number
			}
		}
		exactly := func(text json.Number, n int64) bool {
			r, ok := new(big.Rat).SetString(text.String())
			return ok && r.Cmp(new(big.Rat).SetInt64(n)) == 0
		}
		if plain.Cost != nil && !b.request.Peek && !exactly(*plain.Cost, b.request.Cost) {
			t.Fatalf("%q: the cost is %d", src, b.request.Cost)
		}
		if err := json.Unmarshal(src, &plain); err != nil || len(plain.Attributes) != len(b.request.Attributes) {
			t.Fatalf("%q is taken, but: %v %v", src, plain, err)
		}
		if b.domain != plain.Domain || len(b.descriptors) != len(plain.Descriptors) || len(b.descriptors) > MaxDescriptors {
			t.Fatalf("%q: %+v", src, b)
		}
		for i, d := range b.descriptors {
			p := plain.Descriptors[i]
			if len(d.entries) != len(p.Entries) || len(d.entries) == 0 || len(d.entries) > MaxEntries || d.hasCost != (p.Cost != nil) || d.hasCost && !exactly(*p.Cost, d.cost) {
				t.Fatalf("%q: %+v", src, d)
			}
			for j, e := range d.entries {
				if e.Name != p.Entries[j].Key || e.Value != p.Entries[j].Value || e.Name == "" {
					t.Fatalf("%q: %+v", src, d)
				}
			}
		}
		for _, a := range b.request.Attributes {
			if plain.Attributes[a.Name] != a.Value {
				t.Fatalf("%q: %q is %q, want %q", src, a.Name, a.Value, plain.Attributes[a.Name])
			}
		}
	})
}
