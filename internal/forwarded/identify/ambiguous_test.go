package identify

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
)

func TestAmbiguous(t *testing.T) {
	plan := NewPlan([]string{"header:x-api-key", "header:x_old", "cookie:session", "cookie:user_id", "query:tenant", "query:t_id", "size", "ip"})
	for _, tt := range []struct {
		header []string
		query  string
		want   string
	}{
		{[]string{"X-Api-Key: a", "X-Old-Key: b", "Cookie: a=1; b=2; a=3", "Accept: a", "Accept: b"}, "a=1&a=2&tenants=3&tenant=4", ""},
		{[]string{"Cookie: session=1", "Cookie: other=1"}, "", ""},
		{[]string{"X-Api-Key: a", "X-Api-Key: a"}, "", "header:x-api-key"},
		{[]string{"X_Api_Key: a"}, "", "header:x-api-key"},
		{[]string{"X-Api_Key: a", "X-Api-Key: a"}, "", "header:x-api-key"},
		{[]string{"X-Old: a"}, "", "header:x_old"},
		{[]string{"X_old: a"}, "", ""},
		{[]string{"Cookie: session=1; x=y;session=2"}, "", "cookie:session"},
		{[]string{"Cookie: session=1", "Cookie: session="}, "", "cookie:session"},
		{[]string{"Cookie: user.id=1"}, "", "cookie:user_id"},
		{[]string{"Cookie: session"}, "", ""},
		{nil, "tenant=1&%74enant=2", "query:tenant"},
		{nil, "tenant&tenant", "query:tenant"},
		{nil, "tenant[]=1", "query:tenant"},
		{nil, "tenant%5B0%5D=1", "query:tenant"},
		{nil, "a=1;tenant=2", "query:tenant"},
		{nil, "t.id=1", "query:t_id"},
		{nil, "t+id=1", "query:t_id"},
		{nil, "t_id=1", ""},
	} {
		h := http.Header{}
		for _, line := range tt.header {
			name, value, _ := strings.Cut(line, ": ")
			h[name] = append(h[name], value)
		}
		if got := plan.Ambiguous(h, tt.query); got != tt.want {
			t.Errorf("%q, %q: %q, want %q", tt.header, tt.query, got, tt.want)
		}
	}
	if got := NewPlan([]string{"header:*"}).Ambiguous(http.Header{"A": {"1", "2"}, "X_A": {"1"}}, "a=1&a=2"); got != "" {
		t.Errorf("of all fields %q is ambiguous", got)
	}
}

// Whatever a request has: if it is not ambiguous, the first and the last occurrence are the same, for each way in which
// servers read names.
func TestUnambiguousReadings(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	plan := NewPlan([]string{"header:x-key", "cookie:c_d", "query:q"})
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	plain, ambiguous := 0, 0
	for range 20_000 {
		h, query := http.Header{}, ""
		fields := map[string][]string{} // as servers that make variables read them
		variable := strings.NewReplacer("-", "_", ".", "_", " ", "_")
		for range r.IntN(4) {
			value := fmt.Sprint(r.IntN(9))
			switch r.IntN(3) {
			case 0:
				name := pick("X-Key", "X_Key", "X-Other", "X-Keys")
				h[name] = append(h[name], value)
				name = variable.Replace(strings.ToUpper(name))
				fields[name] = append(fields[name], value)
			case 1:
				name := pick("c_d", "c.d", "cd", "C_d")
				h["Cookie"] = append(h["Cookie"], name+"="+value)
				name = variable.Replace(name)
				fields["cookie "+name] = append(fields["cookie "+name], value)
			default:
				name := pick("q", "%71", "qq", "Q")
				query += pick("&", ";") + name + "=" + value
				name = strings.ReplaceAll(name, "%71", "q")
				fields["query "+name] = append(fields["query "+name], value)
			}
		}
		query = strings.TrimLeft(query, "&;")
		if plan.Ambiguous(h, query) != "" {
			ambiguous++
			continue
		}
		plain++
		read := map[string]string{}
		for _, a := range plan.Append(nil, h, query) {
			read[a.Name] = a.Value
		}
		for attribute, variable := range map[string]string{"header:x-key": "X_KEY", "cookie:c_d": "cookie c_d", "query:q": "query q"} {
			values := fields[variable]
			if v, there := read[attribute]; len(values) > 1 || there != (len(values) == 1) || there && v != values[0] {
				// A value may have a semicolon, behind which others read the next parameter.
				if attribute == "query:q" && there && len(values) == 1 && strings.HasPrefix(v, values[0]+";") {
					continue
				}
				t.Fatalf("%v %q: %s is %q here, and %q elsewhere", h, query, attribute, v, values)
			}
		}
	}
	if plain < 1000 || ambiguous < 1000 {
		t.Errorf("%d are plain, %d ambiguous", plain, ambiguous)
	}
}
