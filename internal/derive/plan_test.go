package derive

import (
	"log/slog"
	"reflect"
	"slices"
	"testing"

	"github.com/stint-io/stint/limit"
)

// ledger knows the plans of customers.
type ledger map[string]string

func (ledger) By() []string { return []string{"claim:org", "customer"} }

func (l ledger) Plan(attrs []limit.Attribute) (string, bool) {
	for _, by := range l.By() {
		if name, ok := value(attrs, by); ok && l[name] != "" {
			return l[name], true
		}
	}
	return "free", false
}

func (ledger) Exists(plan string) bool { return plan == "free" || plan == "pro" || plan == "gold" }

func (ledger) Count(_ []limit.Attribute, _ string, nominal int64) int64 { return nominal }

// The plan of a known customer counts, whatever the caller says. For others the caller may name one that exists; without
// it they have the default one. What the caller gave is not written to.
func TestPlanned(t *testing.T) {
	p := Planned{New(slog.Default()), ledger{"acme": "pro"}}
	for _, c := range []struct{ in, want []limit.Attribute }{
		{attrs("customer", "acme"), attrs("customer", "acme", "plan", "pro")},
		{attrs("claim:org", "acme", "customer", "x"), attrs("claim:org", "acme", "customer", "x", "plan", "pro")},
		{attrs("customer", "acme", "plan", "gold"), attrs("customer", "acme", "plan", "pro")},
		{attrs("plan", "gold", "plan", "gold", "customer", "acme"), attrs("plan", "pro", "plan", "pro", "customer", "acme")},
		{attrs("customer", "acme", "plan", "pro"), attrs("customer", "acme", "plan", "pro")},
		{attrs("customer", "bob"), attrs("customer", "bob", "plan", "free")},
		{attrs("customer", "bob", "plan", "gold"), attrs("customer", "bob", "plan", "gold")},
		{attrs("customer", "bob", "plan", "nonsense"), attrs("customer", "bob", "plan", "free")},
		{attrs("customer", "bob", "plan", ""), attrs("customer", "bob", "plan", "free")},
		{nil, attrs("plan", "free")},
	} {
		before := slices.Clone(c.in)
		if got := p.Derive([]string{Plan}, c.in); !reflect.DeepEqual(got, c.want) || !reflect.DeepEqual(c.in, before) {
			t.Errorf("%v: %v, want %v", before, got, c.want)
		}
	}
	in := attrs("ip", "192.0.2.1", "customer", "acme", "plan", "gold")
	got := p.Derive([]string{Plan, UserIP}, in)
	if want := attrs("ip", "192.0.2.1", "customer", "acme", "plan", "pro", "user_ip", "192.0.2.1"); !reflect.DeepEqual(got, want) || in[2].Value != "gold" {
		t.Errorf("%v, want %v", got, want)
	}
	if got := p.Derive([]string{UserIP}, attrs("customer", "acme")); len(got) != 1 {
		t.Errorf("a plan that no limit reads: %v", got)
	}
	if !p.Derives(Plan) || !p.Derives("claim:org") || p.Derives("customer") {
		t.Error("derives")
	}
	if got := p.Needs([]string{Plan}); !slices.Equal(got, []string{"claim:org", "customer"}) {
		t.Errorf("needs %v", got)
	}
}
