package redis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/internal/redistest"
)

// What the doctor makes of a server's figures: each finding on its bound, and one beyond.
func TestFindingsOfFigures(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	info := func(pairs ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	replicas := func(states ...string) map[string]string {
		m := info("connected_slaves", fmt.Sprint(len(states)), "master_repl_offset", "1000")
		for i, s := range states {
			m[fmt.Sprint("slave", i)] = s
		}
		return m
	}
	memory, persistence, replication := (*examination).memory, (*examination).persistence, (*examination).replication
	for _, tt := range []struct {
		look  func(*examination, map[string]string)
		info  map[string]string
		of    Topology
		level Level
		text  string
	}{
		{memory, info("maxmemory", "100"), Standalone, Warning, "does not tell"},
		{memory, info("maxmemory_policy", "allkeys-lru", "maxmemory", "0"), Standalone, Good, "no maxmemory"},
		{memory, info("maxmemory_policy", "allkeys-lru", "maxmemory", "1"), Standalone, Bad, "evicted while they count"},
		{memory, info("maxmemory_policy", "noeviction", "maxmemory", "1000", "used_memory", "900"), Standalone, Good, "900 B of maxmemory 1000 B used"},
		{memory, info("maxmemory_policy", "noeviction", "maxmemory", "1000", "used_memory", "901"), Standalone, Warning, "901 B of maxmemory 1000 B are used"},
		{persistence, info("rdb_last_bgsave_status", "ok"), Standalone, Good, "no append-only file"},
		{persistence, info("rdb_last_bgsave_status", "ok", "aof_enabled", "1", "aof_last_write_status", "ok"), Standalone, Good, "append-only file: a restart"},
		{persistence, info("rdb_last_bgsave_status", "err"), Standalone, Warning, "could not save"},
		{persistence, info("aof_enabled", "1", "aof_last_write_status", "err"), Standalone, Warning, "could not save"},
		{persistence, info("aof_enabled", "0", "aof_last_write_status", "err"), Standalone, Good, "no append-only file"},
		{replication, replicas(), Standalone, Good, "no replicas"},
		{replication, replicas(), Sentinel, Warning, "no replicas"},
		{replication, replicas(), Cluster, Warning, "no replicas"},
		{replication, replicas("state=online,offset=990,lag=2"), Standalone, Good, "1 in step, the slowest heard from 2 s ago and 10 bytes behind"},
		{replication, replicas("state=online,offset=1000,lag=0", "state=online,offset=400,lag=1"), Cluster, Good, "2 in step, the slowest heard from 1 s ago and 600 bytes behind"},
		{replication, replicas("state=online,offset=400,lag=3", "state=online,offset=1000,lag=0"), Standalone, Warning, "2 in step, the slowest heard from 3 s ago and 600 bytes behind"},
		{replication, replicas("state=wait_bgsave,offset=0,lag=9"), Sentinel, Warning, "no replica is in step"},
		{replication, replicas("state=wait_bgsave,offset=0,lag=9", "state=online,offset=999,lag=0"), Standalone, Warning, "1 in step, the slowest heard from 0 s ago and 1 bytes behind: a failover forgets what was counted since; 1 not in step"},
	} {
		e := &examination{o: Options{Topology: tt.of}}
		tt.look(e, tt.info)
		if len(e.found) != 1 || e.found[0].Level != tt.level || !strings.Contains(e.found[0].Text, tt.text) || (e.found[0].Advice != "") != (tt.level > Good) {
			t.Errorf("%v: %+v, want %v %q", tt.info, e.found, tt.level, tt.text)
		}
	}
	const timeout = 50 * time.Millisecond
	for _, tt := range []struct {
		median, worst time.Duration
		level         Level
	}{
		{timeout / 4, timeout / 2, Good},
		{timeout / 4, timeout/2 + 1, Warning},
		{timeout, 2 * timeout, Warning},
		{timeout + 1, 2 * timeout, Bad},
	} {
		e := &examination{o: Options{Timeout: timeout}}
		if e.pace(tt.median, tt.worst, 100); len(e.found) != 1 || e.found[0].Level != tt.level {
			t.Errorf("%v and %v: %+v, want %v", tt.median, tt.worst, e.found, tt.level)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 20: "1 MiB", 1<<30 - 1: "1024 MiB", 1 << 30: "1 GiB", 5 << 40: "5 TiB"} {
		if got := size(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
	if got := fields("txt:# Server\r\nredis_version:7.0.15\r\nodd\r\na:b:c\r\n"); len(got) != 2 || got["redis_version"] != "7.0.15" || got["a"] != "b:c" {
		t.Errorf("fields are %q", got)
	}
}

// A server is fit by its mode, its role and its version: 6.2 is the oldest, and a version
// that is not understood is taken.
func TestFitServers(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for version, old := range map[string]bool{
		"": false, "x.y": false, "7": false, "5.9.9": true, "6.0.20": true, "6.1.9": true, "6.2": false, "6.2.0": false, "6.10.1": false, "7.0.0": false, "10.1": false, "5.x": false,
	} {
		if got := (serverInfo{Version: version}).old(); got != old {
			t.Errorf("%q is too old: %v, want %v", version, got, old)
		}
	}
}

// The suggestion for a misspelt parameter is the nearest one, within two letters.
func TestNearestParameter(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, want := range map[string]string{
		"timeout": "timeout", "Time-Out": "timeout", "timout": "timeout", "tmeot": "timeout", "tmet": "", "prefx": "prefix", "database": "", "d": "db", "dbx": "db", "q": "",
		"insecure": "insecure_skip_verify", "sentinel-password": "sentinel_password", "passwordfile": "password_file", "certificate": "", "server": "server_name", "caa": "ca", "xy": "key", "xyz": "",
	} {
		if got := nearest(name); got != want {
			t.Errorf("%q is told to be %q, want %q", name, got, want)
		}
	}
	for _, tt := range []struct {
		a, b string
		d    int
	}{{"", "", 0}, {"a", "", 1}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"abc", "abc", 0}, {"abc", "bc", 1}, {"abcd", "acbd", 2}} {
		if got, back := distance(tt.a, tt.b), distance(tt.b, tt.a); got != tt.d || back != tt.d {
			t.Errorf("from %q to %q it is %d, and %d back, want %d", tt.a, tt.b, got, back, tt.d)
		}
	}
}

// An examination whose time is over says so, and finds nothing that it has not seen.
func TestExaminationEnds(t *testing.T) {
	o := Options{Addrs: []string{redistest.Start(t).Addr()}, Timeout: patient}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	c, err := newClient(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	e := &examination{o: o}
	for name, look := range map[string]func(context.Context, rueidis.Client) error{
		"permissions": e.permissions, "scripts": e.scripts, "round trip": e.roundTrip, "clock": e.clock, "info": e.info,
		"subscribe": func(ctx context.Context, c rueidis.Client) error {
			_, err := e.subscribe(ctx, c, e.name())
			return err
		},
	} {
		if err := look(gone, c); err == nil || len(e.found) > 0 {
			t.Errorf("%s: %v, found %+v", name, err, e.found)
		}
	}
}
