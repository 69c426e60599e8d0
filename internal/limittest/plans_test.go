package limittest

import (
	"os"
	"path/filepath"
	"testing"
)

// Requests have the plans of their customers, as in a service: those of the limits file, and everyone else's default
// one; a plan that has ended at the time of the request is over, whatever the clock of the machine says.
func TestPlans(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	csv := write("customers.csv", "bolt,pro,2026-05-02\n")
	write("stint.yaml", `
plans:
  - {name: free, limits: [{name: messages, rate: 2/day, algorithm: fixed_window}]}
  - {name: pro, limits: [{name: messages, rate: 9/day, algorithm: fixed_window}]}
customers: {by: customer, default: free, list: {acme: pro}, from: `+csv+`}
`)
	r, err := Run(t.Context(), filepath.Join(dir, "x_test.yaml"), []byte(`config: stint.yaml
start: 2026-05-01T23:00:00Z
tests:
  - name: plans
    steps:
      - {request: {customer: acme}, expect: {limit: pro.messages, remaining: 8}}
      - {request: {customer: dora}, expect: {limit: free.messages, remaining: 1}}
      - {request: {customer: bolt}, expect: {limit: pro.messages}}
      - {after: 2h, request: {customer: bolt}, expect: {limit: free.messages}}
      - {request: {customer: dora, plan: pro}, expect: {limit: pro.messages}}
      - {request: {customer: acme, plan: free}, expect: {limit: pro.messages}}
`))
	if err != nil || r.Failed != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if err := os.Remove(csv); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), filepath.Join(dir, "x_test.yaml"), []byte("config: stint.yaml\ntests: [{name: a, steps: [{request: {customer: acme}}]}]\n")); err == nil {
		t.Error("the file of customers is not there, and nothing said so")
	}
}
