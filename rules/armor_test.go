package rules

import (
	"strings"
	"testing"

	"github.com/stint-io/stint/limit"
)

const armorRate = `rateLimitOptions: {conformAction: allow, exceedAction: "deny(429)", rateLimitThreshold: {count: 100, intervalSec: 60}`

// armorFile is a policy of one rule.
func armorFile(rule string) string {
	return "name: edge\nrules:\n- {priority: 1000, match: {versionedExpr: SRC_IPS_V1, config: {srcIpRanges: ['*']}}, " + rule + "}\n"
}

// Terraform's names, blocks as lists of one, and deny-403 mean the same.
func TestArmorSpellings(t *testing.T) {
	api := mustParse(t, armorFile(`action: rate_based_ban, `+armorRate+`, banDurationSec: 600, banThreshold: {count: 1000, intervalSec: 60}, enforceOnKeyConfigs: [{enforceOnKeyType: HTTP_HEADER, enforceOnKeyName: X-Key}]}`))
	terraform := mustParse(t, `name: edge
rules:
- priority: 1000
  action: rate_based_ban
  match: [{versioned_expr: SRC_IPS_V1, config: [{src_ip_ranges: ['*']}]}]
  rate_limit_options:
  - conform_action: allow
    exceed_action: deny(429)
    rate_limit_threshold: [{count: 100, interval_sec: 60}]
    ban_threshold: [{count: 1000, interval_sec: 60}]
    ban_duration_sec: 600
    enforce_on_key: ""
    enforce_on_key_configs: [{enforce_on_key_type: HTTP_HEADER, enforce_on_key_name: X-Key}]
`)
	for _, s := range []*Set{api, terraform} {
		l := s.Limits()[0]
		if l.Name != "edge.1000" || len(l.Key) != 1 || l.Key[0] != "header:x-key" || l.Base.Policy.Algorithm != limit.FixedWindow || l.Base.BanPolicy.Rate.Count != 1100 || l.Ban.For.Seconds() != 600 {
			t.Errorf("%+v", l)
		}
	}
	many := mustParse(t, armorFile(`action: throttle, `+strings.Replace(armorRate, "100", "1000000", 1)+`}`)).Limits()[0]
	if many.Base.Policy.Algorithm != limit.SlidingWindowCounter {
		t.Errorf("%+v", many.Base.Policy)
	}
}

// What is not known is refused with its place, and never read as something else.
func TestArmorFaults(t *testing.T) {
	for rule, want := range map[string]string{
		`action: throttle`: "has no rateLimitOptions",
		`action: tarpit`:   `unknown action "tarpit"`,
		`action: throttle, ` + armorRate + `, enforceOnKey: TLS_JA3_FINGERPRINT}`:                                                                                        `unknown key "TLS_JA3_FINGERPRINT"`,
		`action: throttle, ` + armorRate + `, enforceOnKey: HTTP_HEADER}`:                                                                                                "has no name",
		`action: throttle, ` + armorRate + `, enforceOnKey: IP, enforceOnKeyConfigs: [{enforceOnKeyType: IP}]}`:                                                          "exclude each other",
		`action: throttle, ` + armorRate + `, enforceOnKeyConfigs: [{enforceOnKeyType: IP}, {enforceOnKeyType: IP}]}`:                                                    "twice",
		`action: throttle, ` + armorRate + `, enforceOnKeyConfigs: [{enforceOnKeyType: IP}, {enforceOnKeyType: ASN}, {enforceOnKeyType: SNI}, {enforceOnKeyType: ALL}]}`: "at most 3",
		`action: throttle, ` + strings.Replace(armorRate, "deny(429)", "deny(418)", 1) + `}`:                                                                             "unknown exceedAction",
		`action: throttle, ` + strings.Replace(armorRate, "deny(429)", "redirect", 1) + `, exceedRedirectOptions: {type: GOOGLE_RECAPTCHA}}`:                             "GOOGLE_RECAPTCHA is not known",
		`action: throttle, ` + strings.Replace(armorRate, "allow", "deny", 1) + `}`:                                                                                      "conformAction is",
		`action: rate_based_ban, ` + armorRate + `}`:                                                                                                                     "no banDurationSec",
		`action: rate_based_ban, ` + armorRate + `, banDurationSec: 60, banThreshold: {count: 5, intervalSec: 30}}`:                                                      "cannot be counted exactly",
		`action: allow, match: {expr: {expression: "evaluatePreconfiguredExpr('xss-stable')"}}`:                                                                          "needs data of Google's",
		`action: allow, match: {expr: {expression: "request.path.startsWith("}}`:                                                                                         "Syntax error",
		`action: allow, match: {versionedExpr: SRC_IPS_V1, config: {srcIpRanges: ['10.0.0.0/99']}}`:                                                                      "not a network",
	} {
		file := armorFile(rule)
		if strings.Contains(rule, "match:") {
			file = strings.Replace(file, "match: {versionedExpr: SRC_IPS_V1, config: {srcIpRanges: ['*']}}, ", "", 1)
		}
		if _, err := Parse("armor.yaml", []byte(file)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "armor.yaml:") {
			t.Errorf("%s:\n got %v\nwant %q", rule, err, want)
		}
	}
}

func FuzzArmor(f *testing.F) {
	f.Add(armorFile(`action: throttle, ` + armorRate + `, enforceOnKey: IP}`))
	f.Add(armorFile(`action: "deny(403)"`))
	f.Add("rules: [1, {priority: x}, {match: {expr: {expression: 'has(request.headers['}}}]")
	f.Fuzz(func(t *testing.T, src string) {
		if set, err := Parse("armor.yaml", []byte(src)); err == nil {
			set.Match("", []limit.Attribute{{Name: "ip", Value: "10.0.0.1"}, {Name: "path", Value: "/"}}, nil, nil)
		}
	})
}
