package redis

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
)

func diagnose(t *testing.T, url string) []Finding {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	found := Diagnose(ctx, parsed(t, url))
	for range 10 { // a busy machine may not run a server for its time-out
		if last := found[len(found)-1]; !strings.Contains(last.Text, "no answer in time") {
			break
		}
		found = Diagnose(ctx, parsed(t, url))
	}
	for _, f := range found {
		text := f.Text + f.Advice
		if f.Check == "" || f.Text == "" || strings.Contains(text, "\n") || (f.Advice == "") != (f.Level == Good) {
			t.Errorf("%s: not one line, or with too much or too little advice: %+v", url, f)
		}
		if leaked(text) {
			t.Errorf("%s: the password is in %+v", url, f)
		}
	}
	return found
}

// of returns the findings of one check.
func of(found []Finding, check string) []Finding {
	return slices.DeleteFunc(slices.Clone(found), func(f Finding) bool { return f.Check != check })
}

// want looks for a finding.
func want(t *testing.T, found []Finding, check string, level Level, text string) {
	t.Helper()
	for _, f := range of(found, check) {
		if f.Level == level && strings.Contains(f.Text+" | "+f.Advice, text) {
			return
		}
	}
	t.Errorf("no finding %s %v with %q in\n%s", check, level, text, list(found))
}

func list(found []Finding) string {
	var b strings.Builder
	for _, f := range found {
		fmt.Fprintf(&b, "  %v %s: %s | %s\n", f.Level, f.Check, f.Text, f.Advice)
	}
	return b.String()
}

func TestDiagnose(t *testing.T) {
	server := redistest.Start(t, "--requirepass", secret)
	found := diagnose(t, "redis://:"+secret+"@"+server.Addr()+"/3?timeout=10s")
	var checks []string
	for _, f := range found {
		checks = append(checks, f.Check)
		if f.Level != Good {
			t.Errorf("%+v", f)
		}
	}
	if got := strings.Join(checks, " "); got != "reach version role acl scripts round-trip clock maxmemory-policy persistence replication" {
		t.Errorf("checks are %s", got)
	}
	want(t, found, "version", Good, "redis ")
	want(t, found, "role", Good, "master")
	want(t, found, "round-trip", Good, "median")
	want(t, found, "clock", Good, "decisions go by the server's clock alone")
	want(t, found, "persistence", Good, "no append-only file")
	want(t, found, "replication", Good, "no replicas")
	if left := server.Info("db3"); left != "" {
		t.Errorf("keys are left: %s", left)
	}
}

func TestDiagnoseBadOptions(t *testing.T) {
	found := Diagnose(t.Context(), Options{})
	if len(found) != 1 || found[0].Level != Bad || !strings.Contains(found[0].Text, "no address") {
		t.Errorf("got\n%s", list(found))
	}
}

// TestDiagnoseUnfit examines servers that no limits can be kept in.
func TestDiagnoseUnfit(t *testing.T) {
	server := redistest.Start(t, "--requirepass", secret)
	replica := redistest.Start(t, "--replicaof", strings.Replace(server.Addr(), ":", " ", 1))
	aged := redistest.StartProxy(t, redistest.Start(t).Addr())
	aged.Rewrite("7.0.15", "6.0.15")
	gone := redistest.Start(t)
	gone.Kill()
	for url, expect := range map[string]struct{ check, text, advice string }{
		gone.URL():                {"reach", gone.Addr() + ": nobody listens there (connection refused)", "start the server, or correct the address"},
		server.URL():              {"reach", "a password is needed", "password_file"},
		replica.URL():             {"role", "read-only", "give the address of its master"},
		"redis://" + aged.Addr():  {"version", "redis 6.0.15 is too old", "use Redis 6.2 or newer"},
		"rediss://" + gone.Addr(): {"reach", "nobody listens there", "start the server"},
	} {
		found := diagnose(t, url)
		last := found[len(found)-1]
		if last.Check != expect.check || last.Level != Bad || !strings.Contains(last.Text, expect.text) || !strings.Contains(last.Advice, expect.advice) {
			t.Errorf("%s: the last finding is %+v", url, last)
		}
	}
}

func TestDiagnoseEviction(t *testing.T) {
	server := redistest.Start(t)
	for _, tt := range []struct {
		most, policy string
		level        Level
		text         string
	}{
		{"0", "allkeys-lru", Good, "allkeys-lru, and no maxmemory: nothing is evicted"},
		{"100mb", "noeviction", Good, "of maxmemory 100 MiB used"},
		{"100mb", "allkeys-lru", Bad, "set maxmemory-policy noeviction"},
		{"100mb", "volatile-lru", Bad, "counters are evicted while they count"},
		{"100mb", "volatile-ttl", Bad, "counters are evicted while they count"},
		{"100mb", "allkeys-random", Bad, "counters are evicted while they count"},
	} {
		server.Do("CONFIG", "SET", "maxmemory", tt.most, "maxmemory-policy", tt.policy)
		want(t, diagnose(t, server.URL()), "maxmemory-policy", tt.level, tt.text)
	}
	server.Do("CONFIG", "SET", "maxmemory", "1", "maxmemory-policy", "noeviction")
	found := diagnose(t, server.URL())
	want(t, found, "maxmemory-policy", Warning, "a full server refuses to count")
	want(t, found, "scripts", Bad, "raise its maxmemory")
}

func TestDiagnosePersistence(t *testing.T) {
	want(t, diagnose(t, redistest.Start(t, "--appendonly", "yes").URL()), "persistence", Good, "append-only file: a restart forgets what its last fsync lacks")
	none := redistest.Start(t).URL() // it saves nothing
	want(t, diagnose(t, none), "persistence", Good, "no append-only file: a restart forgets what the last snapshot lacks")
	want(t, Diagnose(t.Context(), parsed(t, none+"?timeout=10s"), "month", "year"), "persistence", Warning, "these limits have long windows: month, year | set appendonly yes")
	want(t, Diagnose(t.Context(), parsed(t, redistest.Start(t, "--save", "3600 1").URL()+"?timeout=10s"), "month"), "persistence", Good, "what the last snapshot lacks")
	e := &examination{}
	e.persistence(map[string]string{"rdb_last_bgsave_status": "err"})
	want(t, e.found, "persistence", Warning, "could not save")
}

func TestDiagnoseReplication(t *testing.T) {
	server := redistest.Start(t)
	replica := redistest.Start(t, "--replicaof", strings.Replace(server.Addr(), ":", " ", 1))
	await(t, "the replica to be in step", func() bool { return strings.Contains(server.Info("slave0"), "state=online") })
	want(t, diagnose(t, server.URL()), "replication", Good, "1 in step")
	replica.Freeze()
	await(t, "the replica to fall behind", func() bool {
		found := of(diagnose(t, server.URL()), "replication")
		return len(found) == 1 && found[0].Level == Warning && strings.Contains(found[0].Advice, "look at the replica")
	})

	e := &examination{}
	e.replication(map[string]string{"connected_slaves": "2", "master_repl_offset": "110", "slave0": "ip=a,port=1,state=online,offset=100,lag=1", "slave1": "ip=b,port=1,state=wait_bgsave,offset=0,lag=0"})
	want(t, e.found, "replication", Warning, "1 in step, the slowest heard from 1 s ago and 10 bytes behind: a failover forgets what was counted since; 1 not in step")
	e = &examination{}
	e.replication(map[string]string{"connected_slaves": "1", "slave0": "ip=b,port=1,state=send_bulk,offset=0,lag=0"})
	want(t, e.found, "replication", Warning, "no replica is in step")
}

func TestDiagnoseSlow(t *testing.T) {
	proxy := redistest.StartProxy(t, redistest.Start(t).Addr())
	proxy.Delay(6 * time.Millisecond)
	want(t, diagnose(t, "redis://"+proxy.Addr()+"?timeout=3ms"), "round-trip", Bad, "a call may take 3ms")
	e := &examination{o: Options{Timeout: 12 * time.Millisecond}}
	for worst, level := range map[time.Duration]Level{time.Millisecond: Good, 7 * time.Millisecond: Warning} {
		e.found = nil
		e.pace(time.Millisecond, worst, 100)
		want(t, e.found, "round-trip", level, "worst")
	}
}

func TestDiagnoseClock(t *testing.T) {
	now := time.Now()
	for ahead, level := range map[time.Duration]Level{0: Good, 900 * time.Millisecond: Good, 3 * time.Second: Warning, -time.Hour: Warning} {
		e := &examination{}
		e.offset(now.Add(ahead), now, time.Millisecond)
		want(t, e.found, "clock", level, "this machine")
	}
}

// TestDiagnoseEnds: Diagnose returns soon after its context ends.
func TestDiagnoseEnds(t *testing.T) {
	server := redistest.Start(t)
	server.Freeze()
	want(t, diagnose(t, server.URL()), "reach", Bad, server.Addr()+": no answer in time")

	proxy := redistest.StartProxy(t, redistest.Start(t).Addr())
	proxy.Delay(20 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	began, machine := time.Now(), machineLate(t)
	found := Diagnose(ctx, parsed(t, "redis://"+proxy.Addr()))
	if took := time.Since(began); took > 1500*time.Millisecond+2*machine() {
		t.Errorf("took %v", took)
	}
	want(t, found, "reach", Bad, "no answer in time")

	cancel()
	found = Diagnose(ctx, parsed(t, "redis://"+proxy.Addr()))
	want(t, found, "reach", Bad, "no answer in time")
}

func TestDiagnoseSentinel(t *testing.T) {
	group := redistest.StartSentinel(t)
	found := diagnose(t, group.URL())
	want(t, found, "reach", Good, "the sentinels name "+group.Current()+" as the master mymaster")
	want(t, found, "replication", Good, "1 in step")
	want(t, found, "scripts", Good, "")
}

func TestDiagnoseCluster(t *testing.T) {
	cluster := redistest.StartCluster(t)
	found := diagnose(t, cluster.URL()+"?timeout=10s")
	want(t, found, "reach", Good, "a cluster of 6 nodes, of which 3 are masters that answer")
	want(t, found, "cluster", Good, "all 16384 slots have a master")
	masters := 0
	for _, node := range cluster.Nodes {
		if role := node.Info("role"); role != "master" {
			continue
		}
		masters++
		for _, check := range []string{"version", "role", "acl", "scripts", "round-trip", "clock", "maxmemory-policy", "persistence", "replication"} {
			want(t, found, check, Good, node.Addr()+": ")
		}
	}
	if n := len(of(found, "scripts")); masters != 3 || n != masters {
		t.Errorf("%d masters, %d examined:\n%s", masters, n, list(found))
	}

	// One master has a user who may do less, and another a policy that evicts.
	weak, evicting := cluster.Master("a"), cluster.Master("b")
	weak.Do("ACL", "SETUSER", "default", "-zadd")
	evicting.Do("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "volatile-lru")
	found = diagnose(t, cluster.URL())
	want(t, found, "acl", Bad, weak.Addr()+": the user lacks +zadd | ACL SETUSER default +zadd")
	want(t, found, "maxmemory-policy", Bad, evicting.Addr()+": volatile-lru")
	if len(of(found, "scripts")) != 2 {
		t.Errorf("got\n%s", list(found))
	}

	// A master without a replica takes its slots with it.
	victim := cluster.Master("c")
	for _, node := range cluster.Nodes {
		if node.Info("role") == "slave" && strings.HasSuffix(victim.Addr(), ":"+node.Info("master_port")) {
			node.Kill()
			break
		}
	}
	victim.Kill()
	await(t, "the cluster to be broken", func() bool {
		found = diagnose(t, cluster.URL())
		c := of(found, "cluster")
		// The node that was asked may see a failed master before it takes that for the end.
		return len(c) > 0 && c[0].Level == Bad && strings.Contains(list(c), "state fail")
	})
	want(t, found, "cluster", Bad, "state fail")
}

// recommended is the ACL in the reference page, one word each.
func recommended(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.FromSlash("../../docs/reference/redis.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "ACL SETUSER stint on >PASSWORD ")
	line, _, _ := strings.Cut(rest, "```")
	line = strings.ReplaceAll(line, "\\\n", " ")
	if !ok || strings.Contains(line, "\n\n") {
		t.Fatal("the page has no ACL SETUSER stint on >PASSWORD ...")
	}
	return strings.Fields(line)
}

// TestPermissions holds the ACL of the reference page, what is examined and what
// the scripts call against each other.
func TestPermissions(t *testing.T) {
	examined := []string{"subscribe"}
	for _, c := range commands {
		examined = append(examined, strings.ToLower(c.name))
	}
	var listed []string
	for _, word := range recommended(t) {
		if name, ok := strings.CutPrefix(word, "+"); ok {
			listed = append(listed, name)
		}
	}
	// Connecting shows that they are there.
	connecting := []string{"cluster|shards", "cluster|slots", "role", "select"}
	optional := []string{"cluster|info", "info"}
	slices.Sort(listed)
	all := slices.Sorted(slices.Values(slices.Concat(examined, connecting, optional)))
	if !slices.Equal(listed, all) {
		t.Errorf("the page lists\n%v, want\n%v", listed, all)
	}

	called := regexp.MustCompile(`call\(\s*['"]([A-Za-z]+)['"]`)
	var files []string
	for _, pattern := range []string{"*.go", "lua/*.lua", "../../internal/cluster/redis/*.go"} {
		matched, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, matched...)
	}
	calls := map[string]bool{"ping": true, "eval": true, "evalsha": true, "asking": true, "subscribe": true, "wait": true}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range called.FindAllSubmatch(text, -1) {
			name := strings.ToLower(string(m[1]))
			calls[name] = true
			if !slices.Contains(examined, name) {
				t.Errorf("%s calls %s, which is neither in commands nor in the reference page", file, name)
			}
		}
	}
	for _, name := range examined {
		if !calls[name] {
			t.Errorf("nothing calls %s: take it out of commands and the reference page", name)
		}
	}
}

// TestDiagnoseACL removes every permission, one at a time.
func TestDiagnoseACL(t *testing.T) {
	server := redistest.Start(t)
	url := "redis://stint:" + secret + "@" + server.Addr() + "?timeout=10s"
	grant := func(words ...string) {
		server.Do(slices.Concat([]string{"ACL", "SETUSER", "stint", "reset", "on", ">" + secret}, words)...)
	}
	acl := recommended(t)
	grant(acl...)
	server.Do("ACL", "LOG", "RESET")
	for _, f := range diagnose(t, url) {
		if f.Level != Good {
			t.Errorf("with the recommended ACL: %+v", f)
		}
	}
	refused := server.Do("ACL", "LOG")
	if log, err := refused.ToArray(); err != nil || len(log) != 0 {
		t.Errorf("the server refused something: %v, %v", log, err)
	}
	for _, word := range acl {
		without := slices.DeleteFunc(slices.Clone(acl), func(w string) bool { return w == word })
		switch word {
		case "+asking", "+cluster|shards", "+cluster|slots", "+cluster|info", "+role", "+select", "-@all", "resetkeys", "resetchannels":
			continue
		case "+info":
			grant(without...)
			want(t, diagnose(t, url), "info", Warning, "give it +info")
		default:
			grant(without...)
			want(t, diagnose(t, url), "acl", Bad, "the user lacks "+word+" | ACL SETUSER stint "+word)
		}
	}
	grant("-@all")
	found := of(diagnose(t, url), "acl")
	if len(found) != 1 || len(strings.Fields(found[0].Text)) != len(strings.Fields("the user lacks"))+len(commands)-1+1-len(creators) {
		t.Errorf("with nothing permitted: %+v", found)
	}
	grant(slices.Concat([]string{"-@all"}, []string{"~stint:*", "+rpush", "+zadd", "+hset", "+lpush", "+sadd"})...)
	want(t, diagnose(t, url), "acl", Bad, "+del")
	// Where nothing could be deleted, it expires.
	keys := server.Do("KEYS", "*")
	names, err := keys.AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if ttl := server.Int("PTTL", name); ttl <= 0 && ttl != -2 || !strings.HasPrefix(name, "stint:doctor:") {
			t.Errorf("the key %s stays, with a PTTL of %d", name, ttl)
		}
	}
}

// TestClusterACL connects to a cluster, and to sentinels, with the permissions of the
// reference page alone.
func TestClusterACL(t *testing.T) {
	cluster := redistest.StartCluster(t)
	for _, node := range cluster.Nodes {
		node.Do(slices.Concat([]string{"ACL", "SETUSER", "stint", "reset", "on", ">" + secret}, recommended(t))...)
	}
	with := "://stint:" + secret + "@"
	for _, f := range diagnose(t, strings.Replace(cluster.URL(), "://", with, 1)+"?timeout=10s") {
		if f.Level != Good {
			t.Errorf("%+v", f)
		}
	}
	cluster.Nodes[0].Do("ACL", "SETUSER", "stint", "-cluster|info")
	first := "redis+cluster" + with + cluster.Nodes[0].Addr()
	cluster.Nodes[0].Do("ACL", "SETUSER", "stint", "-cluster|slots")
	want(t, diagnose(t, first), "reach", Bad, "the user lacks a permission (NOPERM")

	group := redistest.StartSentinel(t)
	for _, node := range []*redistest.Server{group.Master, group.Replica} {
		node.Do(slices.Concat([]string{"ACL", "SETUSER", "stint", "reset", "on", ">" + secret}, recommended(t))...)
	}
	url := strings.Replace(group.URL(), "://", with, 1)
	for _, f := range diagnose(t, url+"?timeout=10s") {
		if f.Level != Good {
			t.Errorf("%+v", f)
		}
	}
	for _, s := range group.Sentinels {
		s.Do("ACL", "SETUSER", "watcher", "on", ">"+secret, "-@all", "+ping", "+subscribe", "+unsubscribe", "+sentinel|sentinels", "+sentinel|get-master-addr-by-name", "allchannels")
	}
	for _, f := range diagnose(t, url+"?timeout=10s&sentinel_username=watcher&sentinel_password="+secret) {
		if f.Level != Good {
			t.Errorf("%+v", f)
		}
	}
	log := group.Sentinels[0].Do("ACL", "LOG")
	if refused, err := log.ToArray(); err != nil || len(refused) != 0 {
		t.Errorf("a sentinel refused something: %v, %v", refused, err)
	}
	group.Master.Do("ACL", "SETUSER", "stint", "-role")
	want(t, diagnose(t, url), "reach", Bad, "the user lacks a permission (NOPERM")
}
