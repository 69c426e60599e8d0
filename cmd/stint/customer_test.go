package main

import (
	"os"
	"strings"
	"testing"
)

const planFile = `
limits:
  - {name: total, rate: 1000/month, algorithm: fixed_window}
plans:
  - name: free
    limits: [{name: messages, rate: 10/month, algorithm: fixed_window, within: total}]
  - name: pro
    limits: [{name: messages, rate: 500/month, algorithm: fixed_window, within: total}]
customers: {by: customer, default: free, list: {acme: pro}}
`

// TestCustomerCommands: which plan a customer has, shown and changed from the command line.
func TestCustomerCommands(t *testing.T) {
	config := file(t, "stint.yaml", planFile)
	p := serveProcess(t, nil, "--config", config, "--state-dir", t.TempDir())
	env := []string{"STINT_ADMIN=" + strings.TrimPrefix(p.admin, "http://"), "STINT_ADDR=" + p.http}
	run := func(want int, contains string, args ...string) {
		t.Helper()
		code, out, errOut := call(t, env, args...)
		if out += errOut; code != want || !strings.Contains(out, contains) {
			t.Errorf("%q: exit code %d, want %d and %q in\n%s", args, code, want, contains, out)
		}
	}
	run(exitOK, "free (default)  free.messages  fixed_window 10/mo", "plan", "ls")
	run(exitOK, "total: 500 of 1000 handed out to 1 customer: it fits", "plan", "ls")
	run(exitOK, "acme has plan pro (the files say so)", "customer", "get", "acme")
	run(exitOK, "bob has plan free (the default: neither set nor in files)", "customer", "get", "bob")
	run(exitOK, "no customer was set", "customer", "ls")
	run(exitUsage, "say which plan", "customer", "set", "bob")
	run(exitUsage, `there is no plan "gold"`, "customer", "set", "bob", "--plan", "gold")
	run(exitUsage, "which is over", "customer", "set", "bob", "--plan", "pro", "--until", "2001-01-01")
	run(exitUsage, "control characters", "customer", "set", "a\x01b", "--plan", "pro")
	run(exitOK, "no customer was set", "customer", "ls") // what was refused changed nothing

	run(exitOK, "nobody has known customer bob", "customer", "set", "bob", "--plan", "pro")
	call(t, env, "take", "customer=bob", "--cost", "400")
	run(exitOK, "messages=200%@2099-01-01T00:00:00Z", "customer", "set", "bob", "--plan", "pro", "--count", "messages=200%@2099-01-01")
	run(exitOK, `"quota": 1000`, "key", "get", "messages", "customer=bob", "--json")
	run(exitOK, "total: 1500 of 1000 handed out to 2 customers: over-subscribed", "plan", "ls")
	run(exitOK, "bob has plan pro (it was set)", "customer", "get", "bob")
	run(exitOK, `"more": false`, "customer", "ls", "--max", "1", "--json")
	run(exitOK, "2099-02-01T00:00:00Z  free", "customer", "set", "bob", "--plan", "pro", "--until", "2099-02-01", "--then", "free")
	run(exitOK, "taken back: bob has plan free", "customer", "rm", "bob")
	run(exitNo, "was not set", "customer", "rm", "bob")
	call(t, env, "customer", "set", "bob", "--plan", "pro")
	run(exitOK, `"used": 400`, "key", "get", "messages", "customer=bob", "--json") // what is used stays used
}

// TestCheckCustomers: stint check reads the files of customers, and says when they are assigned more than there is.
func TestCheckCustomers(t *testing.T) {
	csv := file(t, "customers.csv", "acme,pro\nbolt,pro\nzeta,pro\n")
	config := file(t, "stint.yaml", strings.Replace(planFile, "list: {acme: pro}", "from: "+csv, 1))
	check := func(want int, contains ...string) {
		t.Helper()
		code, out, errOut := call(t, nil, "check", config)
		for _, text := range contains {
			if code != want || !strings.Contains(out+errOut, text) {
				t.Errorf("exit code %d, want %d and %q in\n%s%s", code, want, text, out, errOut)
			}
		}
	}
	check(exitOK, `messages of the plans of 3 customers come to 1500, and limit "total" has 1000: it is over-subscribed`, "good: 3 limits")
	for text, want := range map[string]string{
		"acme,pro\nbolt,gold\n":                   `line 2: customer "bolt": there is no plan "gold"`,
		"acme,pro\nacme,free\n":                   `line 2: customer "acme" is there twice`,
		"acme\n":                                  "line 1 has 1 fields",
		"acme,pro\n\x00\x01\xff,pro\n":            "line 2: ",
		"acme,pro\n" + string([]byte{0xff, 0xfe}): "line 2 has 1 fields",
		"acme,pro,friday\n":                       "no time from 1970",
		strings.Repeat("a", 1<<20) + ",pro\n":     "line 1 has more than 4096 bytes",
	} {
		if err := os.WriteFile(csv, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		check(exitNo, want)
	}
	if err := os.Remove(csv); err != nil {
		t.Fatal(err)
	}
	check(exitOK, "it has to be where the service runs")
}
