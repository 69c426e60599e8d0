package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/etcdtest"
	"github.com/stint-io/stint/internal/redistest"
)

func TestDoctor(t *testing.T) {
	const password = "Xq7Zv9Kw2"
	healthy := redistest.Start(t, "--requirepass", password)
	evicting := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	url := "redis://:" + password + "@" + healthy.Addr()
	named := file(t, "stint.yaml", "store: "+evicting.URL()+"\nlimits: []\n")
	for _, c := range []struct {
		env  []string
		args []string
		code int
		out  string // a part of standard output
		err  string // a part of standard error, "" = it is empty
	}{
		{nil, nil, exitOK, "store memory: nothing to examine", ""},
		{nil, []string{"--store", "memory"}, exitOK, "nothing to examine", ""},
		{nil, []string{"--config", file(t, "a.yaml", "limits: []\n")}, exitOK, "nothing to examine", ""},
		{nil, []string{"--store", url}, exitOK, "store redis://" + healthy.Addr() + "\nok    reach             " + healthy.Addr() + " answers\nok    version           redis ", ""},
		{[]string{"STINT_STORE=" + url}, nil, exitOK, "ok    scripts ", ""},
		{[]string{"STINT_STORE=" + url}, []string{"--config", named}, exitOK, "store redis://" + healthy.Addr(), ""},
		{nil, []string{"--store", url, "--config", file(t, "month.yaml", "limits: [{name: month, key: [customer], algorithm: fixed_window, rate: 10/month}, {name: now, key: [customer], rate: 10/s}]\n")}, exitOK, "warn  persistence       no append-only file and no snapshots: a restart forgets every count, and these limits have long windows: month\n                        set appendonly yes", ""},
		{nil, []string{"--store", url}, exitOK, "ok    persistence ", ""},
		{nil, []string{"--store", "redis://" + healthy.Addr()}, exitNo, "FAIL  reach             " + healthy.Addr() + ": a password is needed", ""},
		{nil, []string{"--config", named}, exitNo, "counters are evicted while they count, and their limits begin anew\n                        set maxmemory-policy noeviction", ""},
		{nil, []string{"--store", "redis://:" + password + "@h:x"}, exitUsage, "", "stint: redis: address 1 of the URL: its port is no number from 1 to 65535"},
		{nil, []string{"--store", "redis"}, exitUsage, "", "the URL has no scheme"},
		{nil, []string{"--config", file(t, "b.yaml", "limits: 1\n")}, exitUsage, "", "want a list of limits"},
		{nil, []string{"--config", "nowhere.yaml"}, exitUsage, "", "nowhere.yaml"},
		{nil, []string{"redis://h"}, exitUsage, "", "stint doctor --help"},
	} {
		code, out, errOut := call(t, c.env, append([]string{"doctor"}, c.args...)...)
		if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errOut, c.err) || (errOut == "") != (c.err == "") {
			t.Errorf("%v %v: exit code %d, want %d with %q and %q, got\n%s%s", c.env, c.args, code, c.code, c.out, c.err, out, errOut)
		}
		if strings.Contains(out+errOut, password) {
			t.Errorf("%v: the password is printed:\n%s%s", c.args, out, errOut)
		}
	}
}

func TestDoctorJSON(t *testing.T) {
	gone := redistest.Start(t)
	code, out, _ := call(t, nil, "doctor", "--json", "--store", gone.URL())
	var r doctorReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if code != exitOK || !r.OK || r.Store != gone.URL() || len(r.Findings) < 9 || r.Findings[0].Check != "reach" || r.Findings[0].Level != "good" {
		t.Errorf("exit code %d, %+v", code, r)
	}
	gone.Kill()
	code, out, _ = call(t, nil, "doctor", "--json", "--store", gone.URL())
	r = doctorReport{}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if code != exitNo || r.OK || len(r.Findings) != 1 || r.Findings[0].Level != "bad" || r.Findings[0].Advice == "" {
		t.Errorf("exit code %d, %+v", code, r)
	}
	code, out, _ = call(t, nil, "doctor", "--json")
	if want := "{\n  \"store\": \"memory\",\n  \"ok\": true,\n  \"findings\": []\n}\n"; code != exitOK || out != want {
		t.Errorf("exit code %d, %s", code, out)
	}
}

// TestDoctorPage: the reference page has every check, and no other.
func TestDoctorPage(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	source := read("../../store/redis/diagnose.go") + read("../../store/redis/examine.go")
	checks := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?:add|fail)\("([a-z-]+)"|const check = "([a-z-]+)"`).FindAllStringSubmatch(source, -1) {
		checks[m[1]+m[2]] = true
	}
	_, table, ok := strings.Cut(read("../../docs/reference/redis.md"), "| check | bad | warning |")
	if !ok || len(checks) < 10 {
		t.Fatalf("the search is wrong: %v", checks)
	}
	rows := 0
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(table, -1) {
		rows++
		if !checks[m[1]] {
			t.Errorf("the page has %s, which doctor has not", m[1])
		}
	}
	// version and role are also said where the error is.
	if rows != len(checks) {
		t.Errorf("the page has %d checks, doctor has %v", rows, checks)
	}
}

// TestDoctorOfCluster: it says who leads, in which epoch, and who is there, and otherwise what to do.
func TestDoctorOfCluster(t *testing.T) {
	t.Parallel()
	backend := etcdtest.Start(t).Addr()
	url := "etcd://" + backend + "/doctor"
	limits := file(t, "stint.yaml", clusterLimits)
	a := serveProcess(t, nil, "--config", limits, "--cluster", url, "--node", "a")
	a.await("this member coordinates")
	b := serveProcess(t, nil, "--config", limits, "--cluster", url, "--node", "b")
	eventually := func(code int, env []string, args []string, patterns ...string) {
		t.Helper()
		said := ""
		for begun := time.Now(); time.Since(begun) < 30*time.Second; {
			got, out, errOut := call(t, env, append([]string{"doctor"}, args...)...)
			said = fmt.Sprintf("exit code %d\n%s%s", got, out, errOut)
			good := got == code
			for _, p := range patterns {
				good = good && regexp.MustCompile(p).MatchString(out+errOut)
			}
			if good {
				return
			}
		}
		t.Errorf("%v: want exit code %d and %q, got %s", args, code, patterns, said)
	}
	eventually(exitOK, nil, []string{"--cluster", url},
		`(?m)^cluster etcd://.*/doctor$`, `ok    backend +it answers in`, `ok    leader +a at 127\.0\.0\.1:\d+ leads leases, epoch \d+`, `ok    members +2: a at .*, b at `)
	eventually(exitOK, []string{"STINT_CLUSTER=" + url}, []string{"--json"}, `"cluster": "etcd://`, `"check": "leader",\s+"level": "good"`)
	eventually(exitNo, nil, []string{"--cluster", "etcd://" + backend + "/docter"}, `FAIL  records +no member has written anything below this URL`, `the prefix at the end must be the same`)
	eventually(exitNo, nil, []string{"--cluster", "etcd://me:secret@127.0.0.1:1/doctor"}, `cluster etcd://me@127\.0\.0\.1:1/doctor\nFAIL  backend +it does not answer`)
	eventually(exitNo, nil, []string{"--cluster", "etcd://127.0.0.1:1/doctor"}, `FAIL  backend +it does not answer`, `start it, or correct the addresses`)
	eventually(exitUsage, nil, []string{"--cluster", "etc://127.0.0.1/doctor"}, `stint: --cluster: cluster: the scheme of the URL is not known, want etcd://`)
	eventually(exitUsage, nil, []string{"--cluster", "alone"}, `give the URL of a backend`)
	if code, _, errOut := call(t, nil, "config", "push", limits, "--to", url); code != exitOK {
		t.Fatal(errOut)
	}
	eventually(exitOK, []string{"STINT_CONFIG=etcd://" + backend + "," + backend + "/doctor"}, nil, `^store memory: nothing to examine`)
	eventually(exitNo, nil, []string{"--config", "etcd://" + backend + "/none"}, `there is no configuration at etcd://.*/none`)
	eventually(exitUsage, nil, []string{"--config", "etc://" + backend}, `--config: cluster: the scheme of the URL is not known`)
	for _, p := range []*process{a, b} {
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(exitNo, nil, []string{"--cluster", url}, `FAIL  leader +nobody leads; the last leader of leases was [ab] at .*, epoch \d+, which has not renewed`, `warn  members +a at .* was killed`, `warn  members +b at `)
}

// TestDoctorOfKeys: a limit whose key never arrives is found at the running service that skips it, and no other is.
func TestDoctorOfKeys(t *testing.T) {
	config := file(t, "stint.yaml", `
limits:
  - {name: per-client, key: [user_id], rate: 1000/h}
  - {name: sometimes, key: [plan_name], rate: 1000/h}
`)
	p := serveProcess(t, nil, "--config", config)
	env := []string{"STINT_ADMIN=" + strings.TrimPrefix(p.admin, "http://"), "STINT_ADDR=" + p.http}
	examine := func(want string) {
		t.Helper()
		code, out, errOut := call(t, nil, "doctor", "--keys", "--admin", p.admin)
		if code != exitOK || !strings.Contains(out, want) || errOut != "" || strings.Count(out, "keys ") != 1 {
			t.Errorf("exit code %d, want %s in\n%s%s", code, want, out, errOut)
		}
	}
	examine("ok    keys              no limit lacks its key for every request")
	call(t, env, "take", "user=u", "plan_name=pro")
	call(t, env, "take", "user=u")
	examine(`warn  keys              limit "per-client" has applied to none of 2 requests, for want of its key`)
	if code, _, errOut := call(t, nil, "doctor", "--keys", "--admin", "http://127.0.0.1:1"); code != exitUsage || !strings.Contains(errOut, "say where it is with --admin") {
		t.Errorf("%d %s", code, errOut)
	}
}
