package rules

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

func TestCalendarOfFiles(t *testing.T) {
	month := 30 * day
	for src, want := range map[string]limit.Policy{
		"rate: 5/month":                                   {Rate: limit.Rate{Count: 5, Period: month}, Align: limit.AlignCalendar},
		"rate: 5/mo":                                      {Rate: limit.Rate{Count: 5, Period: month}, Align: limit.AlignCalendar},
		"rate: 5/30d":                                     {Rate: limit.Rate{Count: 5, Period: month}},
		"rate: 5/month, align: epoch":                     {Rate: limit.Rate{Count: 5, Period: month}},
		"rate: 5/month, align: first_hit":                 {Rate: limit.Rate{Count: 5, Period: month}, Align: limit.AlignFirstHit},
		"rate: 5/month, timezone: Europe/Berlin":          {Rate: limit.Rate{Count: 5, Period: month}, Align: limit.AlignCalendar, Zone: "Europe/Berlin"},
		"rate: 5/month, timezone: UTC":                    {Rate: limit.Rate{Count: 5, Period: month}, Align: limit.AlignCalendar},
		"rate: 5/week":                                    {Rate: limit.Rate{Count: 5, Period: 7 * day}, Align: limit.AlignCalendar},
		"rate: 5/day":                                     {Rate: limit.Rate{Count: 5, Period: day}},
		"rate: 5/day, timezone: UTC":                      {Rate: limit.Rate{Count: 5, Period: day}},
		"rate: 5/hour, timezone: Asia/Kolkata":            {Rate: limit.Rate{Count: 5, Period: time.Hour}, Align: limit.AlignCalendar, Zone: "Asia/Kolkata"},
		"rate: 5/year, hard: 250%":                        {Rate: limit.Rate{Count: 12, Period: 365 * day}, Align: limit.AlignCalendar},
		"rate: 5/minute":                                  {Rate: limit.Rate{Count: 5, Period: time.Minute}},
		"rate: 4611686018427387904/month, hard: 100%":     {Rate: limit.Rate{Count: limit.MaxCount, Period: month}, Align: limit.AlignCalendar},
		"rate: 5/month, align: calendar, timezone: Japan": {Rate: limit.Rate{Count: 5, Period: month}, Align: limit.AlignCalendar, Zone: "Japan"},
	} {
		want.Algorithm = limit.FixedWindow
		if got := mustParse(t, "limits: [{name: a, algorithm: fixed_window, "+src+"}]").Limits()[0].Base.Policy; got != want {
			t.Errorf("%s: %+v, want %+v", src, got, want)
		}
	}
	for src, want := range map[string]string{
		"rate: 5/month, timezone: Europe/Atlantis":           "not the name of a time zone",
		"rate: 5/month, timezone: ''":                        "not the name of a time zone",
		"rate: 5/month, timezone: Local":                     "not the name of a time zone",
		"rate: 5/30d, timezone: Europe/Berlin":               "no meaning for windows of one length",
		"rate: 5/30d, align: calendar":                       "the rate is 5/30d",
		"rate: 4611686018427387904/month, hard: 101%":        "above",
		"rate: 5/month, hard: 99%":                           "from 100% to",
		"rate: 5/month, hard: 250%, soft: 251%":              "from 0% to 250%",
		"rate: 5/month, soft: 101%":                          "from 0% to 100%",
		"rate: 5/month, horizons: [{rate: 5/s}]":             "either a rate or horizons",
		"horizons: []":                                       "want a list of rates",
		"horizons: [{burst: 3}]":                             "has no rate",
		"horizons: [{rate: 5/month}, {rate: 7/month}]":       "duplicate limit name",
		"horizons: [{rate: 5/month, name: x}]":               "unknown key",
		"horizons: [{rate: 5/s}], overrides: [{rate: 5/s}]":  "has no overrides",
		"rate: 5/month, horizons: 5/s":                       "want a list of rates",
		"horizons: [{rate: 5/month, timezone: Moon}]":        "not the name of a time zone",
		"horizons: [{rate: 5/s, algorithm: concurrency}]":    "no meaning with algorithm",
		"rate: 5/month, algorithm: token_bucket, hard: 200%": "",
	} {
		algorithm := "algorithm: fixed_window, "
		if strings.Contains(src, "horizons") || want == "" {
			algorithm = ""
		}
		if want == "" {
			want = "no meaning with algorithm token_bucket"
		}
		if _, err := Parse("x.yaml", []byte("limits: [{name: a, "+algorithm+src+"}]")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", src, err, want)
		}
	}
}

// A limit of several horizons is one limit for each.
func TestHorizons(t *testing.T) {
	s := mustParse(t, `
defaults: {timezone: Europe/Berlin}
limits:
  - name: messages
    key: [account]
    timezone: America/New_York
    soft: 90%
    horizons:
      - {rate: 100M/month, soft: 80%, hard: 250%}
      - {rate: 1400k/hour}
      - {rate: 2000/s, burst: 4000}
      - {rate: 5/day, algorithm: token_bucket, burst: 2}
`)
	var got []string
	for _, l := range s.Limits() {
		p := l.Base.Policy
		got = append(got, l.Name+" "+p.Algorithm.String()+" "+p.Rate.String()+" "+p.Zone)
		if l.Key[0] != "account" {
			t.Error(l.Key)
		}
	}
	want := []string{
		"messages/month fixed_window 250000000/mo America/New_York",
		"messages/hour fixed_window 1400000/h America/New_York",
		"messages/s token_bucket 2000/s ", "messages/day token_bucket 5/d ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if l := s.Limits()[0]; l.SoftPercent != 80 || l.HardPercent != 250 || l.Base.Nominal != 100_000_000 {
		t.Errorf("%+v", l)
	}
	if l := s.Limits()[1]; l.SoftPercent != 90 || l.Base.Nominal != 1_400_000 {
		t.Errorf("%+v", l)
	}
	if w := s.Warnings(); len(w) != 0 {
		t.Error(w)
	}
	l := mustParse(t, "limits: [{name: a, algorithm: fixed_window, rate: 7/week, hard: 150%}]").Limits()[0]
	if l.SoftPercent != 100 || l.Base.Policy.Rate.Count != 10 || l.Base.Nominal != 7 {
		t.Errorf("a hard threshold alone warns from the rate on: %+v", l)
	}
}

// Horizons that leave the moment open let all of the shortest be used at once.
func TestHorizonsWithoutARate(t *testing.T) {
	for src, warned := range map[string]bool{
		"[{rate: 5/month}, {rate: 5/hour}]":                         true,
		"[{rate: 5/month}, {rate: 5/minute}]":                       false,
		"[{rate: 5/month}, {rate: 5/10s, algorithm: fixed_window}]": false,
		"[{rate: 5/day}, {rate: 50/month}]":                         true,
	} {
		w := mustParse(t, "limits: [{name: a, horizons: "+src+"}]").Warnings()
		if got := len(w) == 1 && strings.Contains(w[0].Message, "within a second"); got != warned || !warned && len(w) > 0 {
			t.Errorf("%s: %v", src, w)
		}
	}
}

func TestBudgetAsBucket(t *testing.T) {
	for src, warned := range map[string]bool{
		"rate: 10M/month": true, "rate: 50k/day": true, "rate: 50k/day, algorithm: token_bucket": true,
		"rate: 50k/day, burst: 100k":           false,
		"rate: 50k/day, burst: 100":            false,
		"rate: 50k/24h":                        false,
		"rate: 50k/hour":                       false,
		"rate: 5/day, sharing: leased":         false,
		"rate: 0/day":                          false,
		"rate: 5/day, algorithm: fixed_window": false,
	} {
		if strings.Contains(src, "100k") {
			src, warned = strings.Replace(src, "100k", "100000", 1), true
		}
		got := false
		for _, w := range mustParse(t, "limits: [{name: a, "+src+"}]").Warnings() {
			got = got || strings.Contains(w.Message, "refills all the time")
		}
		if got != warned {
			t.Errorf("%s: warned %v", src, got)
		}
	}
}
