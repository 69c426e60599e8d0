package rules

import (
	"slices"
	"strings"
	"testing"
)

// TestEventsOfLimits: which crossings of a limit are noted.
func TestEventsOfLimits(t *testing.T) {
	for src, want := range map[string][]string{
		"rate: 5/month":            nil,
		"rate: 5/month, soft: 80%": eventWords,
		"rate: 5/hour, hard: 200%, algorithm: fixed_window": eventWords,
		"rate: 5/minute, soft: 80%":                         nil,
		"rate: 5/s":                                         nil,
		"rate: 5/minute":                                    nil,
		"rate: 5/minute, events: [soft]":                    {"soft"},
		"rate: 5/month, events: [under,hard]":               {"under", "hard"},
		"rate: 5/month, events: [hard,hard]":                {"hard"},
		"rate: 5/month, events: none":                       nil,
		"rate: 5/month, events: soft":                       {"soft"},
		"rate: 5/month, events: []":                         nil,
		"rate: 5/month, sharing: leased":                    nil, // the keys are counted elsewhere
		"unlimited: true, key: []":                          nil,
		"algorithm: concurrency, max_in_flight: 5":          nil,
	} {
		l := mustParse(t, "limits: [{name: a, "+src+"}]").Limits()[0]
		if !slices.Equal(l.Events, want) {
			t.Errorf("%s: %q, want %q", src, l.Events, want)
		}
	}
	set := mustParse(t, "defaults: {events: [saturated]}\nlimits: [{name: a, horizons: [{rate: 5/s}, {rate: 9/day, events: none}, {rate: 90/month}]}]")
	for i, want := range [][]string{nil, nil, {"saturated"}} {
		if l := set.Limits()[i]; !slices.Equal(l.Events, want) {
			t.Errorf("%s: %q, want %q", l.Name, l.Events, want)
		}
	}
	if len(set.Warnings()) != 0 {
		t.Error(set.Warnings())
	}
}

// TestEventsSection: what is wrong with the section is said, with its line.
func TestEventsSection(t *testing.T) {
	const limits = "limits: [{name: a, rate: 5/month, algorithm: fixed_window}]\n"
	set := mustParse(t, limits+"events: {webhook: 'https://hooks.example/stint', secret_file: /etc/stint/webhook}")
	if got, want := set.Events(), (Events{"https://hooks.example/stint", "/etc/stint/webhook"}); got != want {
		t.Errorf("%+v", got)
	}
	for src, want := range map[string]string{
		"events: [soft]": "want a map",
		"events: {webhook: 'https://x.example/'}":                         "without a secret",
		"events: {secret_file: /x}":                                       "nothing is sent",
		"events: {webhook: 'ftp://x.example/', secret_file: x}":           "no URL of a web server",
		"events: {webhook: 'https:', secret_file: x}":                     "no URL of a web server",
		"events: {webhook: 'https://a:b@x.example/', secret_file: x}":     "a user name",
		"events: {webhook: \"https://\\u0000x/\", secret_file: x}":        "no URL",
		"events: {webhook: 'https://x.example/', secret: x}":              "unknown key",
		"limits: [{name: b, rate: 5/month, events: [softly]}]":            "did you mean soft",
		"limits: [{name: b, rate: 5/month, events: [zebra]}]":             "there is no event",
		"limits: [{name: b, rate: 5/month, events: {soft: true}}]":        "want",
		"limits: [{name: b, rate: 5/month, events: [[soft]]}]":            "want",
		"limits: [{name: b, horizons: [{rate: 5/month, events: [sof]}]}]": "did you mean soft",
	} {
		whole := src
		if strings.HasPrefix(src, "events") {
			whole = limits + src
		}
		if _, err := Parse("limits.yaml", []byte(whole)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", src, err, want)
		}
	}
	for src, want := range map[string]string{
		limits + "events: {webhook: 'http://x.example/', secret_file: x}": "open connection",
		"limits: [{name: b, rate: 5/s, events: [soft]}]":                  "no window of a minute or longer",
	} {
		if w := mustParse(t, src).Warnings(); len(w) == 0 || !strings.Contains(w[0].Message, want) {
			t.Errorf("%s: %+v, want %q", src, w, want)
		}
	}
	if w := mustParse(t, limits+"events: {webhook: 'http://127.0.0.1:80/', secret_file: x}").Warnings(); len(w) != 0 {
		t.Error(w)
	}
}
