package rules

import (
	"reflect"
	"strings"
	"testing"
)

func TestEstimates(t *testing.T) {
	const limits = "limits: [{name: a, rate: 5/month, algorithm: fixed_window}]\n"
	for src, want := range map[string]Estimates{
		"":                               {},
		"estimates: {by: model}":         {By: []string{"model"}, Declared: "max_tokens", Quantile: 0.9},
		"estimates: {by: [m, t, u, v]}":  {By: []string{"m", "t", "u", "v"}, Declared: "max_tokens", Quantile: 0.9},
		"estimates: {by: m, start: 700}": {By: []string{"m"}, Declared: "max_tokens", Quantile: 0.9, Start: 700},
		"estimates: {by: [m, 'header:X-Team'], declared: most, quantile: 0.5}": {By: []string{"m", "header:x-team"}, Declared: "most", Quantile: 0.5},
	} {
		if got := mustParse(t, limits+src).Estimates(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", src, got, want)
		}
	}
	for src, want := range map[string]string{
		"[model]":                               "want a map",
		"{}":                                    "does not say by which",
		"{by: []}":                              "want 1 to 4 attributes",
		"{by: [a, b, c, d, e]}":                 "want 1 to 4 attributes",
		"{by: [a, a]}":                          "stands here twice",
		"{by: plan}":                            "is found from others",
		"{by: user_ip}":                         "is found from others",
		"{by: {a: b}}":                          "want",
		"{by: max_tokens}":                      "",
		"{by: a, declared: a}":                  "is in by",
		"{by: a, declared: [b]}":                "want",
		"{by: a, quantile: 1}":                  "from 0.01 to 0.999",
		"{by: a, quantile: .nan}":               "from 0.01 to 0.999",
		"{by: a, quantile: 1.5}":                "from 0.01 to 0.999",
		"{by: a, quantile: 0.0001}":             "from 0.01 to 0.999",
		"{by: a, quantile: '0.9'}":              "from 0.01 to 0.999",
		"{by: a, quantile: 90%}":                "from 0.01 to 0.999",
		"{by: a, start: 0}":                     "whole number from 1",
		"{by: a, start: -5}":                    "whole number from 1",
		"{by: a, start: 1.5}":                   "whole number from 1",
		"{by: a, start: 1e30}":                  "whole number from 1",
		"{by: a, start: 999999999999999999999}": "whole number from 1",
		"{by: a, quantil: 0.9}":                 "did you mean quantile",
	} {
		_, err := Parse("x", []byte(limits+"estimates: "+src))
		switch {
		case want == "":
			if err == nil {
				t.Errorf("%s: the attribute that has the most is one of by", src)
			}
		case err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("%s: %v, want %s", src, err, want)
		}
	}
}
