package server_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/server"
)

const planLimits = `
limits:
  - {name: total, rate: 1000/month, algorithm: fixed_window}
plans:
  - name: free
    limits: [{name: messages, rate: 10/month, algorithm: fixed_window, within: total}]
  - name: pro
    limits: [{name: messages, rate: 600/month, algorithm: fixed_window, within: total}]
customers: {by: customer, default: free, list: {acme: pro}}
`

// customers asks the admin port about customers.
func (s *service) customers(method, query string) answer {
	s.t.Helper()
	return s.do(method, s.admin+"/v1/admin/customers?"+query, "")
}

// takes asks for an amount of a customer's messages, and returns the answer.
func (s *service) spends(customer string, cost string) answer {
	s.t.Helper()
	return s.post("/v1/take", `{"attributes":{"customer":"`+customer+`"},"cost":`+cost+`}`)
}

// TestCustomersAreShared: two servers on one Redis. What is set at one holds at the other within two seconds, for a customer
// that is refused there as well; what was used at both counts; the notes say who did it; a server that starts later knows.
func TestCustomersAreShared(t *testing.T) {
	r := redistest.Start(t, "--requirepass", password)
	one, two := startRedis(t, r, planLimits), startRedis(t, r, planLimits)
	for _, c := range []struct {
		s      *service
		cost   string
		status int
	}{{one, "6", 200}, {two, "5", 429}, {two, "4", 200}, {one, "1", 429}, {two, "1", 429}} {
		if a := c.s.spends("bob", c.cost); a.status != c.status {
			t.Fatalf("%+v: %+v", c, a)
		}
	}
	if a := one.customers(http.MethodPut, "customer=bob&plan=pro"); a.status != 200 || !strings.Contains(a.body, `"before":"free","before_from":"default"`) {
		t.Fatalf("%+v", a)
	}
	if a := one.spends("bob", "90"); a.status != 200 || !strings.Contains(a.body, `"pro.messages"`) {
		t.Errorf("where it was set it does not hold at once: %+v", a)
	}
	begun := time.Now()
	await(t, "the other server to know", func() bool { return two.spends("bob", "1").status == 200 })
	if took := time.Since(begun); took > 10*time.Second { // two seconds on a machine with nothing else to do
		t.Errorf("it took %v", took)
	}
	if a := two.customers(http.MethodPut, "customer=bob&plan=pro&count=messages%3D200%25"); a.status != 200 {
		t.Errorf("%+v", a)
	}
	if a := two.spends("bob", "600"); a.status != 200 {
		t.Errorf("%+v", a)
	}
	three := startRedis(t, r, planLimits)
	if a := three.customers(http.MethodGet, "customer=bob"); !strings.Contains(a.body, `"plan":"pro","from":"set"`) {
		t.Errorf("%+v", a)
	}
	if a := three.do(http.MethodGet, three.admin+"/v1/admin/keys?limit=messages&key=customer%3Dbob", ""); !strings.Contains(a.body, `"quota":1200,"used":701`) {
		t.Errorf("%+v", a)
	}
	if a := three.do(http.MethodGet, three.admin+"/v1/admin/plans", ""); !strings.Contains(a.body, `"assigned":[{"limit":"total","count":1000,"assigned":1800,"customers":2,"budgets":["messages"],"over":true}]`) {
		t.Errorf("%+v", a)
	}
	metrics := three.do(http.MethodGet, three.admin+"/metrics", "").body
	for _, want := range []string{`stint_assigned_count{limit="total"} 1800`, `stint_assignable_count{limit="total"} 1000`, "stint_customers_in_files 1", "stint_customers_set 1", "stint_customers_without_plan 0"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if a := three.customers(http.MethodDelete, "customer=bob"); a.status != 200 {
		t.Errorf("%+v", a)
	}
	await(t, "what was taken back to be seen", func() bool { return one.spends("bob", "1").status == 429 && two.spends("bob", "1").status == 429 })
	var notes struct {
		Entries []struct{ Who, Action, What, Before, After string } `json:"entries"`
	}
	a := one.do(http.MethodGet, one.admin+"/v1/admin/audit?what=customer+bob", "")
	if err := json.Unmarshal([]byte(a.body), &notes); err != nil || strings.Count(a.body, `"customer.`) != 3 || !strings.Contains(a.body, `"who":"admin from 127.0.0.1`) {
		t.Errorf("%v %s", err, a.body)
	}
}

// TestCustomersSurvive: customers are there after a restart with a file of counts, before the first request, and what is
// written in files follows the files: a CSV that changes is read again, one that is wrong changes nothing.
func TestCustomersSurvive(t *testing.T) {
	folder := t.TempDir()
	csv := filepath.Join(folder, "customers.csv")
	write(t, csv, "acme,pro\n")
	yaml := strings.Replace(planLimits, "list: {acme: pro}", "from: "+csv, 1)
	kept := func(o *server.Options) { o.StateDir = filepath.Join(folder, "state") }
	s := start(t, yaml, kept)
	if a := s.customers(http.MethodPut, "customer=bob&plan=pro&until=2099-01-01&then=free"); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	if a := s.spends("bob", "100"); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s = start(t, yaml, kept)
	if a := s.spends("bob", "500"); a.status != 200 {
		t.Errorf("after a restart: %+v", a)
	}
	if a := s.spends("bob", "1"); a.status != 429 {
		t.Errorf("what was used is forgotten: %+v", a)
	}
	if a := s.customers(http.MethodGet, "max=10"); !strings.Contains(a.body, `"customer":"bob","plan":"pro","until":"2099-01-01T00:00:00Z","then":"free"`) {
		t.Errorf("%+v", a)
	}
	plan := func(name string) string {
		var found struct{ Plan, From string }
		_ = json.Unmarshal([]byte(s.customers(http.MethodGet, "customer="+name).body), &found)
		return found.Plan + " " + found.From
	}
	if got := plan("acme"); got != "pro files" {
		t.Error(got)
	}
	if err := os.WriteFile(csv, []byte("acme,gold\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, "the wrong file to be refused", func() bool {
		return strings.Contains(s.log.String(), `there is no plan \"gold\"`) || strings.Contains(s.log.String(), `there is no plan \\\"gold\\\"`)
	})
	if got := plan("acme"); got != "pro files" {
		t.Error(got)
	}
	write(t, csv, "zeta,pro\n")
	await(t, "the file to be read", func() bool { return plan("zeta") == "pro files" && plan("acme") == "free default" })
}

// TestCustomersRefuse: bad requests are refused with a reason, by the handler as it stands in the admin port.
func TestCustomersRefuse(t *testing.T) {
	s := start(t, planLimits)
	for query, want := range map[string]string{
		"customer=bob":                                            `no plan \"\"`,
		"plan=pro":                                                "has no name",
		"customer=bob&plan=gold":                                  `no plan \"gold\"`,
		"customer=bob&plan=pro&until=2001-01-01":                  "which is over",
		"customer=bob&plan=pro&until=friday":                      "is no time from 1970",
		"customer=bob&plan=pro&then=free":                         "without until",
		"customer=bob&plan=pro&count=messages":                    "want BUDGET=N",
		"customer=bob&plan=pro&count=messages=x":                  "want a number from 1",
		"customer=bob&plan=pro&count=messages=-5":                 "want a number from 1",
		"customer=bob&plan=pro&count=messages=5@x":                "is no time from 1970",
		"customer=bob&plan=pro&count=messages=5@2001-01-01":       "which is over",
		"customer=bob&plan=pro&count=messages=5&count=messages=6": "given twice",
		"customer=bob&plan=pro&count=tokens=5":                    "it has messages",
		"customer=bob&plan=pro&version=1":                         "unknown parameter",
		"customer=bob&plan=pro&plan=free":                         "given twice",
		"customer=bob&plan=pro&untl=2099-01-01":                   "unknown parameter",
		"customer=a%00b&plan=pro":                                 "control characters",
		"customer=" + strings.Repeat("x", 10_000) + "&plan=pro":   "has 10000 bytes",
	} {
		if a := s.customers(http.MethodPut, query); a.status != 400 || !strings.Contains(a.body, want) {
			t.Errorf("%.80s: %d %.300s, want %s", query, a.status, a.body, want)
		}
	}
	for _, c := range []struct {
		method, query string
		status        int
		want          string
	}{
		{http.MethodDelete, "customer=bob", 404, "was not set"},
		{http.MethodDelete, "customer=bob&plan=pro", 400, "unknown parameter"},
		{http.MethodGet, "customer=", 400, "has no value"},
		{http.MethodGet, "max=0", 400, "want 1 to 1000"},
		{http.MethodPost, "customer=bob", 405, ""},
		{http.MethodGet, "", 200, `"customers":[]`},
	} {
		if a := s.customers(c.method, c.query); a.status != c.status || !strings.Contains(a.body, c.want) {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.query, a.status, a.body, c.status, c.want)
		}
	}
	if a := s.do(http.MethodGet, s.admin+"/v1/admin/audit", ""); strings.Contains(a.body, "customer.") {
		t.Errorf("what was refused is noted: %s", a.body)
	}
	if a := s.customers(http.MethodPut, "customer="+strings.Repeat("x", 2<<20)+"&plan=pro"); a.status < 400 || a.status > 499 {
		t.Errorf("a name of 2 MB: %d", a.status)
	}
}
