package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const budgetLimits = `
limits:
  - {name: month, key: [customer, user], rate: 1000/month, algorithm: fixed_window, timezone: Asia/Kolkata}
  - {name: short, key: [customer], rate: 100000/s}
`

// TestUsage: what was admitted is there by hour and day, as JSON, lines and CSV, and neither refusals nor short limits
// are.
func TestUsage(t *testing.T) {
	s := start(t, budgetLimits)
	take := func(customer, user string, cost int) int {
		return s.post("/v1/take", fmt.Sprintf(`{"attributes":{"customer":%q,"user":%q},"cost":%d}`, customer, user, cost)).status
	}
	for range 5 {
		take("acme", "bob", 100)
	}
	take("acme", "=eve&x\"", 7)
	take("acme2", "bob", 1)
	if take("acme", "bob", 600) != http.StatusTooManyRequests {
		t.Fatal("600 more were admitted")
	}
	get := func(query string) answer {
		t.Helper()
		return s.do(http.MethodGet, s.http+"/v1/usage?"+query, "")
	}
	var page struct {
		Usage []struct {
			Limit       string
			Key         map[string]string
			Start       string
			Used, Taken int
		}
	}
	a := get("customer=acme&by=day")
	if err := json.Unmarshal([]byte(a.body), &page); err != nil || len(page.Usage) != 2 {
		t.Fatal(err, a.body)
	}
	if u := page.Usage[1]; u.Limit != "month" || u.Key["customer"] != "acme" || u.Used != 500 || !strings.HasSuffix(u.Start, "T00:00:00+05:30") {
		t.Errorf("%+v", u)
	}
	if u := page.Usage[0]; u.Key["user"] != "=eve&x\"" || u.Used != 7 {
		t.Errorf("%+v", u)
	}
	for query, want := range map[string]string{
		"limit=month&key=user%3Dbob&by=total&format=csv": "limit,key,start,used,taken,returned\nmonth,customer=acme&user=bob,",
		"format=jsonl&customer=acme2":                    `{"limit":"month","key":{"customer":"acme2","user":"bob"},`,
		"customer=nobody":                                `{"usage":[]}`,
		"customer=nobody&format=csv":                     "limit,key,start,used,taken,returned\n",
		"limit=short":                                    `{"usage":[]}`,
		"from=2001-01&to=2001-02-03":                     `{"usage":[]}`,
		"limit=month&timezone=UTC&by=month":              "-01T00:00:00Z",
	} {
		if a := get(query); a.status != 200 || !strings.Contains(a.body, want) {
			t.Errorf("%s: %d %s, want %s", query, a.status, a.body, want)
		}
	}
	for query, want := range map[string]string{
		"by=week": "want hour, day, month or total", "from=yesterday": "no time from 1970", "from=1900-01-01": "no time from 1970", "format=xml": "want json, jsonl or csv", "customr=a": "unknown parameter",
		"key=acme": "want NAME=VALUE", "limit=a&limit=b": "given twice", "from=2026-02-01&to=2026-01-01": "not before", "timezone=Mars/Base": "Mars/Base",
	} {
		if a := get(query); a.status != 400 || !strings.Contains(a.body, want) {
			t.Errorf("%s: %d %s, want %s", query, a.status, a.body, want)
		}
	}
	if a := s.post("/v1/usage", "{}"); a.status != http.StatusMethodNotAllowed {
		t.Error(a.status)
	}
}

// TestKeysAreChanged: over the admin port, once per request ID, and noted.
func TestKeysAreChanged(t *testing.T) {
	s := start(t, budgetLimits)
	s.post("/v1/take", `{"attributes":{"customer":"acme","user":"bob"},"cost":900}`)
	const key = "limit=month&key=customer%3Dacme&key=user%3Dbob"
	change := func(what, query, id string, status int, want string) {
		t.Helper()
		a := s.do(http.MethodPost, s.admin+"/v1/admin/keys/"+what+"?"+key+query, "", "Idempotency-Key", id)
		if a.status != status || !strings.Contains(a.body, want) {
			t.Errorf("%s%s: %d %s, want %d %s", what, query, a.status, a.body, status, want)
		}
	}
	change("refund", "&amount=100", "a", 200, `"used":800`)
	change("refund", "&amount=100", "a", 200, `"repeated":true`)
	change("refund", "&amount=101", "a", 409, "something else")
	change("refund", "&amount=-1", "b", 400, "amount")
	change("refund", "", "b", 400, "amount")
	change("grant", "&amount=500", "c", 200, `"quota":1500`)
	change("grant", "&amount=501", "d", 400, "cap")
	change("drop", "", "e", 404, "")
	if a := s.post("/v1/take", `{"attributes":{"customer":"acme","user":"bob"},"cost":700}`); a.status != 200 {
		t.Error("what was granted is refused:", a.body)
	}
	change("reset", "&amount=5", "", 400, "no amount")
	change("reset", "", "", 200, `"changed":1500`)
	a := s.do(http.MethodGet, s.admin+"/v1/admin/audit", "")
	if strings.Count(a.body, `"action"`) != 3 || !strings.Contains(a.body, `"request":"c"`) || !strings.Contains(a.body, "key month customer=acme user=bob") {
		t.Error(a.body)
	}
	if a := s.do(http.MethodGet, s.http+"/v1/usage?by=total", ""); !strings.Contains(a.body, `"used":1500,"taken":1600,"returned":100`) {
		t.Error(a.body)
	}
	if a := s.do(http.MethodGet, s.admin+"/v1/admin/keys?limit=nope", ""); a.status != 404 {
		t.Error(a)
	}
}
