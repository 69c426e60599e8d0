package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// Level says how much a [Finding] matters. The zero value is Good.
type Level uint8

// The levels.
const (
	Good    Level = iota
	Warning       // it works, with a disadvantage
	Bad           // limits are not kept, or not for long
)

// String returns good, warning or bad.
func (l Level) String() string {
	if l > Bad {
		return "level " + strconv.Itoa(int(l))
	}
	return [...]string{"good", "warning", "bad"}[l]
}

// Finding is what [Diagnose] says of one thing.
type Finding struct {
	// Check names what was examined: reach, version, role, acl, scripts, round-trip, clock,
	// maxmemory-policy, persistence, replication, cluster or info.
	Check string
	Level Level
	// Text is what was found, one line; for a node of a Cluster its address is in
	// front.
	Text string
	// Advice says what to do; "" when the finding is good.
	Advice string
}

// Diagnose connects as a [Store] with these Options would and examines the server,
// or every master of a Cluster: whether it is fit to keep limits, and how far away
// it is. It writes only keys and messages that begin with the prefix and doctor:,
// which it deletes. The findings come in the order of the examination; one that ends
// it is the last. It takes about 100 round trips for each master and returns soon
// after ctx ends. No finding has a password in it. longWindows are names of limits whose counts must outlive the
// server: with some it is a warning that nothing is written to a disk.
func Diagnose(ctx context.Context, o Options, longWindows ...string) []Finding {
	e := &examination{o: o, long: longWindows}
	if err := e.o.complete(); err != nil {
		e.add("reach", Bad, strings.ReplaceAll(err.Error(), "\n", "; "), "correct the URL")
		return e.found
	}
	c, err := connect(ctx, e.o)
	if err != nil {
		e.fail("reach", err)
		return e.found
	}
	defer c.Close()
	if o.Topology == Cluster {
		e.cluster(ctx, c)
		return e.found
	}
	for address, server := range c.Nodes() {
		if o.Topology == Sentinel {
			e.add("reach", Good, fmt.Sprintf("the sentinels name %s as the master %s", address, o.Master), "")
		} else {
			e.add("reach", Good, address+" answers", "")
		}
		info, err := inspect(ctx, server)
		e.server(ctx, server, info, err)
	}
	return e.found
}

// connect is [newClient] that returns when ctx ends. A connection that is made later
// is closed.
func connect(ctx context.Context, o Options) (rueidis.Client, error) {
	type result struct {
		c   rueidis.Client
		err error
	}
	made := make(chan result, 1)
	go func() {
		c, err := newClient(context.WithoutCancel(ctx), o)
		made <- result{c, err}
	}()
	select {
	case r := <-made:
		return r.c, r.err
	case <-ctx.Done():
		// newClient takes no context and ends by its own time-outs.
		go func() {
			if r := <-made; r.err == nil {
				r.c.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// examination is a diagnosis under way.
type examination struct {
	o     Options
	found []Finding
	at    string   // in front of texts
	long  []string // limits whose counts must outlive the server
	saves schedule
}

func (e *examination) add(check string, level Level, text, advice string) {
	e.found = append(e.found, Finding{check, level, e.at + text, advice})
}

// fail adds what an error says.
func (e *examination) fail(check string, err error) {
	var d *described
	if !errors.As(describe(err, e.o), &d) {
		e.add(check, Bad, err.Error(), "")
		return
	}
	at := cmp.Or(e.at, d.at+": ")
	e.found = append(e.found, Finding{check, Bad, at + d.what, cmp.Or(d.hint, "look at the server's log")})
}

// cluster examines the slots and every master.
func (e *examination) cluster(ctx context.Context, c rueidis.Client) {
	type master struct {
		address string
		info    serverInfo
	}
	nodes := c.Nodes()
	var masters []master
	for _, address := range slices.Sorted(maps.Keys(nodes)) {
		e.at = address + ": "
		info, err := hello(ctx, nodes[address])
		switch {
		case ctx.Err() != nil:
			e.fail("reach", ctx.Err())
			return
		case err != nil:
			// Whether it matters is seen from the slots.
			e.fail("reach", err)
			e.found[len(e.found)-1].Level = Warning
		case info.Role == "master":
			masters = append(masters, master{address, info})
		}
	}
	e.at = ""
	if len(masters) == 0 {
		e.add("cluster", Bad, "no master answers", "look at CLUSTER NODES")
		return
	}
	e.add("reach", Good, fmt.Sprintf("a cluster of %d nodes, of which %d are masters that answer", len(nodes), len(masters)), "")
	e.slots(ctx, nodes[masters[0].address])
	for _, m := range masters {
		e.at = m.address + ": "
		e.server(ctx, nodes[m.address], m.info, m.info.fits(rueidis.ClientModeCluster))
	}
}

// slots checks that every slot has a master.
func (e *examination) slots(ctx context.Context, c rueidis.Client) {
	text, err := c.Do(ctx, c.B().ClusterInfo().Build()).ToString()
	if err != nil {
		if deniedByACL(err) {
			e.add("cluster", Warning, "the user may not run CLUSTER INFO: the state of the cluster is not examined", "give it +cluster|info, or examine with another user")
			return
		}
		e.fail("cluster", err)
		return
	}
	info := fields(text)
	state, assigned, failed := info["cluster_state"], info["cluster_slots_assigned"], info["cluster_slots_fail"]
	if state != "ok" || assigned != "16384" || failed != "0" {
		e.add("cluster", Bad, fmt.Sprintf("state %s, %s of 16384 slots have a master, %s of them a failed one", state, assigned, failed),
			"wait for the failover to end, or give the slots to masters; look at CLUSTER NODES")
		return
	}
	e.add("cluster", Good, "state ok, all 16384 slots have a master", "")
}

// server examines one that can be written to, or says why it cannot.
func (e *examination) server(ctx context.Context, c rueidis.Client, info serverInfo, err error) {
	if err != nil {
		check := "reach"
		switch {
		case info.old():
			check = "version"
		case errors.Is(err, errReplica):
			check = "role"
		}
		e.fail(check, err)
		return
	}
	e.add("version", Good, info.Name+" "+info.Version, "")
	e.add("role", Good, info.Role, "")
	for _, look := range []func(context.Context, rueidis.Client) error{e.permissions, e.roundTrip, e.clock, e.info} {
		if err := look(ctx, c); err != nil {
			e.fail("reach", err)
			return
		}
	}
}

// info examines the reply of INFO.
func (e *examination) info(ctx context.Context, c rueidis.Client) error {
	text, err := c.Do(ctx, c.B().Info().Build()).ToString()
	if deniedByACL(err) {
		e.add("info", Warning, "the user may not run INFO: maxmemory-policy, persistence and replication are not examined", "give it +info, or examine with another user")
		return nil
	}
	if err != nil {
		return err
	}
	info := fields(text)
	e.memory(info)
	if len(e.long) > 0 {
		e.saves = schedules(ctx, c)
	}
	e.persistence(info)
	e.replication(info)
	return nil
}

// fields reads the lines name:value of an INFO.
func fields(text string) map[string]string {
	all := make(map[string]string)
	// A verbatim string has its format in front.
	for line := range strings.Lines(strings.TrimPrefix(text, "txt:")) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			all[name] = value
		}
	}
	return all
}

// number is a field that is one, or 0.
func number(info map[string]string, name string) int64 {
	// A field that is missing or no number is 0.
	n, _ := strconv.ParseInt(info[name], 10, 64)
	return n
}

func (e *examination) memory(info map[string]string) {
	const check = "maxmemory-policy"
	policy, most, used := info["maxmemory_policy"], number(info, "maxmemory"), number(info, "used_memory")
	switch {
	case policy == "":
		e.add(check, Warning, "the server does not tell its maxmemory-policy", "make sure that it is noeviction")
	case most == 0:
		e.add(check, Good, policy+", and no maxmemory: nothing is evicted", "")
	case policy != "noeviction":
		e.add(check, Bad, fmt.Sprintf("%s with maxmemory %s: counters are evicted while they count, and their limits begin anew", policy, size(most)),
			"set maxmemory-policy noeviction: every key here expires by itself")
	case used > most/10*9:
		e.add(check, Warning, fmt.Sprintf("noeviction, and %s of maxmemory %s are used: a full server refuses to count", size(used), size(most)), "raise maxmemory")
	default:
		e.add(check, Good, fmt.Sprintf("noeviction, %s of maxmemory %s used", size(used), size(most)), "")
	}
}

// size is a number of bytes for people.
func size(n int64) string {
	value, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, next
	}
	return strconv.FormatFloat(value, 'g', 4, 64) + " " + unit
}

// schedule is when a server takes snapshots, as its configuration says: "" = never. It is not known where the user
// may not ask.
type schedule struct {
	when  string
	known bool
}

// schedules asks with a command that users of stint need for nothing else.
func schedules(ctx context.Context, c rueidis.Client) (s schedule) {
	// An error is that of a user, or of a service that hides its configuration: then nothing is said of it.
	if is, err := c.Do(ctx, c.B().ConfigGet().Parameter("save").Build()).AsStrMap(); err == nil {
		s.when, s.known = is["save"]
	}
	return s
}

func (e *examination) persistence(info map[string]string) {
	const check = "persistence"
	aof := info["aof_enabled"] == "1"
	switch {
	case info["rdb_last_bgsave_status"] == "err", aof && info["aof_last_write_status"] == "err":
		e.add(check, Warning, "the server could not save the last time, and may refuse writes for it", "look at its log and its disk")
	case aof:
		e.add(check, Good, "append-only file: a restart forgets what its last fsync lacks", "")
	case e.saves.known && e.saves.when == "":
		e.add(check, Warning, "no append-only file and no snapshots: a restart forgets every count, and these limits have long windows: "+strings.Join(e.long[:min(len(e.long), 3)], ", "),
			"set appendonly yes with appendfsync everysec: then a crash forgets a second of counting")
	default:
		e.add(check, Good, "no append-only file: a restart forgets what the last snapshot lacks", "")
	}
}

// replication says how much a failover would forget.
func (e *examination) replication(info map[string]string) {
	const check = "replication"
	var replicas, behind int
	var bytes, seconds int64
	for i := range number(info, "connected_slaves") {
		replica := map[string]string{}
		for pair := range strings.SplitSeq(info["slave"+strconv.FormatInt(i, 10)], ",") {
			name, value, _ := strings.Cut(pair, "=")
			replica[name] = value
		}
		if replica["state"] != "online" {
			behind++
			continue
		}
		replicas++
		bytes = max(bytes, number(info, "master_repl_offset")-number(replica, "offset"))
		seconds = max(seconds, number(replica, "lag"))
	}
	const alone = "nothing takes over when this server is lost"
	text := fmt.Sprintf("%d in step, the slowest heard from %d s ago and %d bytes behind: a failover forgets what was counted since", replicas, seconds, bytes)
	switch {
	case replicas == 0 && behind > 0:
		e.add(check, Warning, "no replica is in step: "+alone, "look at INFO replication")
	case replicas == 0 && e.o.Topology != Standalone:
		e.add(check, Warning, "no replicas: "+alone, "add a replica")
	case replicas == 0:
		e.add(check, Good, "no replicas: "+alone, "")
	case behind > 0:
		e.add(check, Warning, fmt.Sprintf("%s; %d not in step", text, behind), "look at INFO replication")
	case seconds > laggard:
		e.add(check, Warning, text, "look at the replica and the way to it")
	default:
		e.add(check, Good, text, "")
	}
}

// laggard is how many seconds a replica may be silent: it reports each second.
const laggard = 2
