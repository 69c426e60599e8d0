package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	sentinelCount = 3
	quorum        = 2

	// downAfter, in milliseconds, is after how long a silent master is down. Not
	// smaller: a sentinel counts from the moment that it learns of a new master,
	// and pings it for the first time up to pingPeriod plus 100 ms later; below a
	// second or so the default period has it depose each master it makes.
	downAfter = 800

	// pingPeriod, in milliseconds, is how often sentinels ping. Not smaller: they
	// promote no replica that they have not asked about itself for five periods,
	// which they do every second while its master is down.
	pingPeriod = 300

	// MasterName is what the sentinels of a [Group] call its master.
	MasterName = "mymaster"
)

// Group is a master and its replica, watched by three sentinels of which two
// decide. A failover begins 0.8 s after the master has gone, and takes about
// one more.
// [StartSentinel] makes it; the zero value is of no use.
type Group struct {
	// Master and Replica are what the servers were at the start. See Current.
	Master, Replica *Server
	Sentinels       []*Server

	t testing.TB
}

// StartSentinel starts a group and returns when the replica is in step and every
// sentinel knows it and the other sentinels. args are further arguments of
// redis-server for the master and the replica; with "--requirepass" they and the
// sentinels use that password among themselves.
func StartSentinel(t testing.TB, args ...string) *Group {
	t.Helper()
	args = replicating(args)
	g := &Group{t: t, Master: newServer(t, t.TempDir(), args...)}
	g.Replica = newServer(t, t.TempDir(), append([]string{"--replicaof", "127.0.0.1 " + strconv.Itoa(g.Master.port)}, args...)...)
	g.Master.launch()
	g.Replica.launch()
	g.Master.awaitAnswer()
	g.Replica.awaitAnswer()
	// Sentinels ask a master for its replicas every ten seconds only.
	until(t, "the replica of "+g.Master.Addr()+" to be in step", g.Master.hasReplica)
	for range sentinelCount {
		s := newSentinel(t, g.Master)
		s.launch()
		g.Sentinels = append(g.Sentinels, s)
	}
	for _, s := range g.Sentinels {
		s.awaitAnswer()
	}
	for _, s := range g.Sentinels {
		until(t, "the sentinel "+s.Addr()+" to know its group", s.knowsGroup)
	}
	return g
}

// newSentinel returns a sentinel that is not running yet. It keeps what it learns
// in its configuration file.
func newSentinel(t testing.TB, master *Server) *Server {
	t.Helper()
	s := prepare(t, fastDir(t))
	file := filepath.Join(s.dir, "sentinel.conf")
	lines := []string{
		"port " + strconv.Itoa(s.port),
		"bind 127.0.0.1",
		"dir " + strconv.Quote(s.dir),
		fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d %d", MasterName, master.port, quorum),
		fmt.Sprintf("sentinel down-after-milliseconds %s %d", MasterName, downAfter),
		// After twice this a failover that came to nothing is tried again.
		"sentinel failover-timeout " + MasterName + " 2000",
	}
	if master.password != "" {
		lines = append(lines, "sentinel auth-pass "+MasterName+" "+strconv.Quote(master.password))
	}
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatalf("redistest: writing the configuration of a sentinel: %v", err)
	}
	s.args = []string{file, "--sentinel"}
	s.first = []string{
		"SENTINEL", "DEBUG",
		"PING-PERIOD", strconv.Itoa(pingPeriod),
		// A sentinel that was held up for two seconds would do nothing for the next
		// thirty. A loaded machine may hold it up.
		"TILT-TRIGGER", "60000",
		"TILT-PERIOD", "1000",
		// They ask each other about the master, announce themselves and check the servers more
		// often than every 1, 2 and 10 s.
		"ASK-PERIOD", "100",
		"PUBLISH-PERIOD", "200",
		"INFO-PERIOD", "500",
	}
	return s
}

// URL returns redis+sentinel:// with the addresses of the sentinels and the name of
// the master.
func (g *Group) URL() string {
	return "redis+sentinel://" + strings.Join(addresses(g.Sentinels), ",") + "/" + MasterName
}

// Current returns the address of the master by the sentinels that answer; where they differ,
// because one does not know of a failover yet, by the one with the latest epoch. It does not
// wait for a failover.
func (g *Group) Current() string {
	g.t.Helper()
	current, latest := "", int64(-1)
	for _, s := range g.Sentinels {
		if !s.answers() {
			continue
		}
		state, err := s.watched()
		if err != nil {
			g.t.Fatal(err)
		}
		epoch, err := strconv.ParseInt(state["config-epoch"], 10, 64)
		if err != nil {
			g.t.Fatalf("redistest: the config-epoch of the sentinel %s: %v", s.Addr(), err)
		}
		if epoch <= latest {
			continue
		}
		reply := s.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterName)
		host, err := reply.AsStrSlice()
		if err != nil || len(host) != 2 {
			g.t.Fatalf("redistest: the sentinel %s gives %q as the master's address: %v", s.Addr(), host, err)
		}
		current, latest = net.JoinHostPort(host[0], host[1]), epoch
	}
	if current == "" {
		g.t.Fatal("redistest: no sentinel answers")
	}
	return current
}

// watched returns what a sentinel knows of the master.
func (s *Server) watched() (map[string]string, error) {
	reply, err := s.Try("SENTINEL", "MASTER", MasterName)
	if err != nil {
		return nil, err
	}
	return reply.AsStrMap()
}

// knowsGroup reports whether a sentinel finds the master up and knows the replica
// and the other sentinels.
func (s *Server) knowsGroup() (knows bool, why string) {
	state, err := s.watched()
	if err != nil {
		return false, err.Error()
	}
	why = fmt.Sprintf("it knows a master (%s), %s replicas, %s other sentinels",
		state["flags"], state["num-slaves"], state["num-other-sentinels"])
	if state["flags"] != "master" || state["num-slaves"] != "1" || state["num-other-sentinels"] != strconv.Itoa(sentinelCount-1) {
		return false, why
	}
	reply, err := s.Try("SENTINEL", "REPLICAS", MasterName)
	if err != nil {
		return false, err.Error()
	}
	replicas, err := reply.ToArray()
	if err != nil || len(replicas) != 1 {
		return false, fmt.Sprintf("%d replicas: %v", len(replicas), err)
	}
	replica, err := replicas[0].AsStrMap()
	if err != nil {
		return false, err.Error()
	}
	// Without these it would not promote the replica.
	if replica["flags"] != "slave" || replica["master-link-status"] != "ok" {
		return false, fmt.Sprintf("its replica is %s, the link to the master %s", replica["flags"], replica["master-link-status"])
	}
	if _, err := s.Try("SENTINEL", "CKQUORUM", MasterName); err != nil {
		return false, err.Error()
	}
	return true, ""
}
