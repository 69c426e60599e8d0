package redistest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	clusterMasters = 3
	clusterSlots   = 16384

	// nodeTimeout is after how many milliseconds a silent node counts as dead. Not smaller: a
	// loaded machine would fail over by itself. Not larger: every test of a failover waits for
	// it.
	nodeTimeout = 1000
)

// Cluster is a Redis Cluster of three masters with a replica each. A failover
// begins a second after a master has gone, and takes about one. [StartCluster] makes it; the zero value
// is of no use.
type Cluster struct {
	// Nodes are the three masters that the cluster started with, then the replica
	// of each in the same order.
	Nodes []*Server

	t testing.TB
}

// StartCluster starts a cluster and returns when every node finds it whole and
// every master has a replica in step. args are further arguments of redis-server
// for every node; with "--requirepass" they use that password among themselves.
func StartCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	for range 2 * clusterMasters {
		s := newServer(t, fastDir(t), append([]string{
			"--cluster-enabled", "yes",
			"--cluster-config-file", "nodes.conf",
			"--cluster-node-timeout", strconv.Itoa(nodeTimeout),
			"--cluster-announce-ip", "127.0.0.1",
			// A replica takes over however long it has been without its master: a
			// test may have frozen both.
			"--cluster-replica-validity-factor", "0",
		}, replicating(args)...)...)
		s.launch()
		c.Nodes = append(c.Nodes, s)
	}
	for _, s := range c.Nodes {
		s.awaitAnswer()
	}
	for i, s := range c.Nodes {
		// Epochs that differ spare the nodes an election about them.
		s.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i < clusterMasters {
			first, end := clusterSlots*i/clusterMasters, clusterSlots*(i+1)/clusterMasters
			s.Do("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(end-1))
		}
		// Each node meets each other: gossip would take seconds.
		for _, other := range c.Nodes[:i] {
			s.Do("CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(other.port))
		}
	}
	c.replicate()
	for _, s := range c.Nodes {
		until(t, "the cluster to be whole for "+s.Addr(), s.clusterComplete)
	}
	for _, s := range c.Nodes[:clusterMasters] {
		until(t, "a replica of "+s.Addr()+" to be in step", s.hasReplica)
	}
	return c
}

// replicate makes each node of the second half a replica of one of the first.
func (c *Cluster) replicate() {
	c.t.Helper()
	for i, master := range c.Nodes[:clusterMasters] {
		id := master.Text("CLUSTER", "MYID")
		replica := c.Nodes[clusterMasters+i]
		until(c.t, replica.Addr()+" to know "+master.Addr(), func() (bool, string) {
			if _, err := replica.Try("CLUSTER", "REPLICATE", id); err != nil {
				return false, err.Error()
			}
			return true, ""
		})
	}
}

// URL returns redis+cluster:// with the addresses of all nodes.
func (c *Cluster) URL() string { return "redis+cluster://" + strings.Join(c.Addrs(), ",") }

// Addrs returns the addresses of all nodes, running or not.
func (c *Cluster) Addrs() []string { return addresses(c.Nodes) }

func addresses(servers []*Server) []string {
	addrs := make([]string, 0, len(servers))
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// Master returns the node that serves the slot of key. When its master is killed or frozen it
// waits until another has taken over. Where two nodes claim to be it, because one does not know
// of the failover yet, it is the one of the later epoch.
func (c *Cluster) Master(key string) *Server {
	c.t.Helper()
	var master *Server
	until(c.t, fmt.Sprintf("a master of the key %q", key), func() (bool, string) {
		i := slices.IndexFunc(c.Nodes, (*Server).answers)
		if i < 0 {
			return false, "no node answers"
		}
		slot := c.Nodes[i].Int("CLUSTER", "KEYSLOT", key)
		var latest int64 = -1
		for _, s := range c.Nodes {
			if self, err := s.self(); err == nil && self.master && self.has(slot) && self.epoch > latest {
				master, latest = s, self.epoch
			}
		}
		return master != nil, fmt.Sprintf("no node that answers serves slot %d", slot)
	})
	return master
}

// node is a line of CLUSTER NODES.
type node struct {
	self, master, replica, healthy bool
	epoch                          int64
	slots                          [][2]int64 // first and last
}

func (n node) has(slot int64) bool {
	return slices.ContainsFunc(n.slots, func(r [2]int64) bool { return r[0] <= slot && slot <= r[1] })
}

// self returns what a node says of itself.
func (s *Server) self() (node, error) {
	nodes, err := s.view()
	if err != nil {
		return node{}, err
	}
	i := slices.IndexFunc(nodes, func(n node) bool { return n.self })
	if i < 0 {
		return node{}, fmt.Errorf("redistest: CLUSTER NODES at %s does not name the node itself", s.Addr())
	}
	return nodes[i], nil
}

// view returns all nodes as this one sees them.
func (s *Server) view() ([]node, error) {
	if !s.answers() {
		return nil, fmt.Errorf("redistest: %s does not run", s.Addr())
	}
	reply, err := s.Try("CLUSTER", "NODES")
	if err != nil {
		return nil, err
	}
	text, err := reply.ToString()
	if err != nil {
		return nil, err
	}
	var nodes []node
	for line := range strings.Lines(text) {
		n, err := parseNode(line)
		if err != nil {
			return nil, fmt.Errorf("redistest: CLUSTER NODES at %s: %w in %q", s.Addr(), err, line)
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// parseNode reads "id address flags master ping pong epoch link slot slot ...".
func parseNode(line string) (node, error) {
	const before = 8 // fields that come before the slots
	words := strings.Fields(line)
	if len(words) < before {
		return node{}, fmt.Errorf("%d fields, want at least %d", len(words), before)
	}
	flags := strings.Split(words[2], ",")
	is := func(flag string) bool { return slices.Contains(flags, flag) }
	n := node{self: is("myself"), master: is("master"), replica: is("slave")}
	n.healthy = !is("fail") && !is("fail?") && !is("handshake") && !is("noaddr") && (n.self || words[7] == "connected")
	var err error
	if n.epoch, err = strconv.ParseInt(words[6], 10, 64); err != nil {
		return node{}, err
	}
	for _, word := range words[before:] {
		if strings.HasPrefix(word, "[") {
			continue // a slot on its way elsewhere, which is listed as owned as well
		}
		from, to, isRange := strings.Cut(word, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseInt(from, 10, 64)
		if err != nil {
			return node{}, err
		}
		last, err := strconv.ParseInt(to, 10, 64)
		if err != nil {
			return node{}, err
		}
		n.slots = append(n.slots, [2]int64{first, last})
	}
	return n, nil
}

// clusterComplete reports whether, as this node sees it, every slot is served and
// every master has its replica.
func (s *Server) clusterComplete() (whole bool, why string) {
	info, err := s.tryInfo("CLUSTER", "INFO")
	if err != nil {
		return false, err.Error()
	}
	if info["cluster_state"] != "ok" || info["cluster_slots_ok"] != strconv.Itoa(clusterSlots) {
		return false, fmt.Sprintf("cluster_state %s, cluster_slots_ok %s", info["cluster_state"], info["cluster_slots_ok"])
	}
	nodes, err := s.view()
	if err != nil {
		return false, err.Error()
	}
	masters, replicas := 0, 0
	for _, n := range nodes {
		switch {
		case n.healthy && n.master && len(n.slots) > 0:
			masters++
		case n.healthy && n.replica:
			replicas++
		}
	}
	why = fmt.Sprintf("it sees %d masters and %d replicas in health among %d nodes", masters, replicas, len(nodes))
	return masters == clusterMasters && replicas == clusterMasters && len(nodes) == 2*clusterMasters, why
}

// hasReplica reports whether a replica of this server follows it in step.
func (s *Server) hasReplica() (has bool, why string) {
	info, err := s.tryInfo("INFO", "replication")
	if err != nil {
		return false, err.Error()
	}
	replica := info["slave0"]
	return strings.Contains(replica, "state=online"), fmt.Sprintf("INFO says role:%s slave0:%s", info["role"], replica)
}
