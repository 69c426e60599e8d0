package limit

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

func TestParseRate(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Rate
	}{
		{"100/s", PerSecond(100)},
		{"5/minute", PerMinute(5)},
		{"5 / minutes", PerMinute(5)},
		{"20/10s", Rate{20, 10 * time.Second}},
		{"3/1h30m", Rate{3, 90 * time.Minute}},
		{"0.5/s", Rate{1, 2 * time.Second}},
		{"0.1/s", Rate{1, 10 * time.Second}},
		{"1.5/s", Rate{3, 2 * time.Second}},
		{"2.50/m", Rate{5, 2 * time.Minute}},
		{"1M/month", Rate{1_000_000, 30 * 24 * time.Hour}},
		{"2.5k/day", Rate{2500, 24 * time.Hour}},
		{"1/year", Rate{1, 365 * 24 * time.Hour}},
		{"1/2 weeks", Rate{1, 14 * 24 * time.Hour}},
		{"0/s", Rate{0, time.Second}},
		{"0.000/h", Rate{0, time.Hour}},
		{"4611686018427387904/s", Rate{MaxCount, time.Second}},
		{"1/ns", Rate{1, 1}},
	} {
		got, err := ParseRate(c.in)
		if err != nil || got != c.want {
			t.Errorf("ParseRate(%q) = %+v, %v, want %+v", c.in, got, err, c.want)
		}
	}
}

func TestParseRateErrors(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", "has no period"},
		{"100", "has no period, write it as 100/s"},
		{"/s", "not a number"},
		{"NaN/s", "not a number"},
		{"Inf/s", "not a number"},
		{"1e3/s", "not a number"},
		{"+1/s", "not a number"},
		{"1_000/s", "not a number"},
		{".5/s", "not a number"},
		{"5./s", "not a number"},
		{"k/s", "not a number"},
		{"-1/s", "negative"},
		{"-0.5/s", "negative"},
		{"0.1234567891/s", "more than 9 decimals"},
		{"4611686018427387905/s", "above 4611686018427387904"},
		{"99999999999999999999/s", "above 4611686018427387904"},
		{"9223372036854775807G/s", "above 4611686018427387904"},
		{"5/fortnight", "unknown period"},
		{"5/", "unknown period"},
		{"5/s/s", "unknown period"},
		{"5/0s", "zero"},
		{"5/-1s", "not positive"},
		{"5/1000000000 years", "above 292 years"},
		{"0.000000001/year", "below one per 292 years"},
	} {
		if got, err := ParseRate(c.in); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("ParseRate(%q) = %+v, %v, want an error with %q", c.in, got, err, c.want)
		}
	}
}

func TestRateStringRoundTrip(t *testing.T) {
	r := seeding.Rand(t)
	rates := []Rate{PerSecond(100), PerMinute(5), PerHour(0), Every(time.Nanosecond), {MaxCount, math.MaxInt64}, {3, 90 * time.Minute}}
	for range 2000 {
		rates = append(rates, Rate{r.Int64N(MaxCount), time.Duration(1 + r.Int64N(int64(1)<<(1+r.IntN(62))))})
	}
	for _, want := range rates {
		if got, err := ParseRate(want.String()); err != nil || got != want {
			t.Errorf("%+v is written %q and read %+v, %v", want, want, got, err)
		}
	}
	for want, r := range map[string]Rate{
		"100/s": PerSecond(100), "20/10s": {20, 10 * time.Second}, "1/90m": {1, 90 * time.Minute},
		"3/mo": {3, 30 * 24 * time.Hour}, "0/0s": {},
	} {
		if got := r.String(); got != want {
			t.Errorf("%+v is written %q, want %q", r, got, want)
		}
	}
}

func TestRateValidate(t *testing.T) {
	for _, r := range []Rate{{-1, time.Second}, {MaxCount + 1, time.Second}, {1, 0}, {1, -1}, {0, -1}, {math.MinInt64, math.MinInt64}} {
		if r.Validate() == nil {
			t.Errorf("%+v is valid", r)
		}
	}
	for _, r := range []Rate{{}, {0, 1}, {MaxCount, 1}, {1, math.MaxInt64}} {
		if err := r.Validate(); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func TestTimeSaturates(t *testing.T) {
	for _, c := range []struct {
		t    Time
		d    time.Duration
		want Time
	}{{1, 2, 3}, {math.MaxInt64 - 1, 5, math.MaxInt64}, {5, -3, 2}, {math.MaxInt64, Never, math.MaxInt64}} {
		if got := c.t.Add(c.d); got != c.want {
			t.Errorf("%d.Add(%d) = %d, want %d", c.t, c.d, got, c.want)
		}
	}
}

// What ParseRate accepts is valid, and String writes what it reads.
func FuzzParseRate(f *testing.F) {
	for _, s := range []string{"100/s", "0.5/s", "1M/month", "3/1h30m", "NaN/s", "-1/s", "20/10s", "9223372036854775807G/s", "1/2 weeks"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRate(s)
		if err != nil {
			if r != (Rate{}) || !strings.HasPrefix(err.Error(), "limit: ") {
				t.Errorf("ParseRate(%q) = %+v, %v", s, r, err)
			}
			return
		}
		if err := r.Validate(); err != nil {
			t.Errorf("ParseRate(%q) = %+v, which is invalid: %v", s, r, err)
		}
		if again, err := ParseRate(r.String()); err != nil || again != r {
			t.Errorf("ParseRate(%q) = %+v, written %q, read %+v, %v", s, r, r, again, err)
		}
	})
}
