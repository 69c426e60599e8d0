package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/etcd"
	"github.com/stint-io/stint/internal/etcdtest"
	"github.com/stint-io/stint/internal/gen/memberpb"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/internal/testca"
	"github.com/stint-io/stint/server"
)

const monthOfMembers = "limits: [{name: month, key: [customer], algorithm: fixed_window, rate: 1000/month}]\n"

// used is what a member says that each customer has used in all, and which members are missing in that.
func (s *service) used() (sums map[string]int64, incomplete []string) {
	s.t.Helper()
	var page struct {
		Usage []struct {
			Key  map[string]string
			Used int64
		}
		Incomplete []string
	}
	if a := s.do(http.MethodGet, s.http+"/v1/usage?by=total", ""); a.status != http.StatusOK || json.Unmarshal([]byte(a.body), &page) != nil {
		s.t.Fatalf("%d %s", a.status, a.body)
	}
	sums = map[string]int64{}
	for _, row := range page.Usage {
		sums[row.Key["customer"]] += row.Used
	}
	return sums, page.Incomplete
}

// usageBecomes waits until a member says that a customer has used so much, and fails when it does not.
func (s *service) usageBecomes(customer, want string) {
	s.t.Helper()
	body := ""
	for begun := time.Now(); time.Since(begun) < 30*time.Second; <-time.After(50 * time.Millisecond) {
		body = s.do(http.MethodGet, s.http+"/v1/usage?by=total&format=csv&customer="+customer, "").body
		if strings.Contains(body, ","+want+"\n") {
			return
		}
	}
	s.t.Errorf("no %q in\n%s", want, body)
}

func (s *service) takes(customer, cost string) {
	s.t.Helper()
	if a := s.post("/v1/take", `{"attributes":{"customer":"`+customer+`"},"cost":`+cost+`}`); a.status != http.StatusOK {
		s.t.Errorf("%d %s", a.status, a.body)
	}
}

// roles are identities by certificates: a member, and one that may take and lease.
const roles = `identities:
  - {name: member, certificate: {cn: member}, roles: [member]}
  - {name: worker, certificate: {cn: worker}, roles: [take, {lease: {limits: ["*"]}}, admin]}
`

// TestUsageOfMembersAtRandom: whichever member is asked, its answer is the sum of what all have admitted. While one is
// stopped, the others say so, and what it has admitted is missing. Once it is back with its state directory, all is
// there again.
func TestUsageOfMembersAtRandom(t *testing.T) {
	if testing.Short() {
		t.Skip("TestUsageOfMembers has the same goroutines: nothing for the race detector")
	}
	t.Parallel()
	backend := etcdtest.Start(t)
	for seed := range seeding.Draw(t, 2) {
		r := rand.New(rand.NewPCG(seed, 14))
		members := make([]*service, 3)
		admitted := make([]map[string]int64, len(members)) // by each
		names, dirs := make([]string, len(members)), make([]string, len(members))
		begin := func(i int) {
			members[i] = start(t, monthOfMembers, joins(fmt.Sprint("etcd://", backend.Addr(), "/random", seed), names[i], func(o *server.Options) {
				o.StateDir, o.Cluster.Shards = dirs[i], 1+2*int(seed%2)
			}))
		}
		take := func(i int) {
			customer, cost := fmt.Sprint("c", r.IntN(4)), 1+r.Int64N(9)
			members[i].takes(customer, fmt.Sprint(cost))
			admitted[i][customer] += cost
		}
		// all is what members have admitted, without the one of that index.
		all := func(without int) map[string]int64 {
			sums := map[string]int64{}
			for i, one := range admitted {
				for customer, n := range one {
					if i != without {
						sums[customer] += n
					}
				}
			}
			return sums
		}
		// together waits until each member knows the others.
		together := func() {
			t.Helper()
			for begun := time.Now(); ; <-time.After(50 * time.Millisecond) {
				good := true
				for _, s := range members {
					sums, incomplete := s.used()
					good = good && incomplete == nil && maps.Equal(sums, all(-1))
				}
				if good {
					return
				}
				if time.Since(begun) > 30*time.Second {
					for i, s := range members {
						sums, incomplete := s.used()
						t.Errorf("seed %d: %s says %v, %v is missing; want %v", seed, names[i], sums, incomplete, all(-1))
					}
					t.FailNow()
				}
			}
		}
		for i := range members {
			names[i], dirs[i], admitted[i] = fmt.Sprint("n", i), t.TempDir(), map[string]int64{}
			begin(i)
			take(i)
		}
		together()
		stopped := -1
		for range 60 {
			i := r.IntN(len(members))
			switch n := r.IntN(10); {
			case n == 0 && stopped < 0:
				stopped = i
				if err := members[i].stop(); err != nil {
					t.Fatal(err)
				}
			case n == 0:
				begin(stopped)
				stopped = -1
				together()
			case i == stopped:
			case n < 4:
				var want []string
				if stopped >= 0 {
					want = []string{names[stopped]}
				}
				if sums, incomplete := members[i].used(); !maps.Equal(sums, all(stopped)) || !slices.Equal(incomplete, want) {
					t.Fatalf("seed %d: %s says %v, %v is missing; want %v, %v", seed, names[i], sums, incomplete, all(stopped), want)
				}
			default:
				take(i)
			}
		}
		if stopped >= 0 {
			begin(stopped)
			together()
		}
	}
}

// TestUsageSaysWhoIsMissing: in each format, in the metrics and in the log, where it is said once.
func TestUsageSaysWhoIsMissing(t *testing.T) {
	if testing.Short() {
		t.Skip("TestUsageOfMembers has the same goroutines: nothing for the race detector")
	}
	t.Parallel()
	url := "etcd://" + etcdtest.Start(t).Addr() + "/missing"
	s, other := start(t, monthOfMembers, joins(url, "a")), start(t, monthOfMembers, joins(url, "=b"))
	s.takes("anna", "3")
	other.takes("anna", "4")
	s.usageBecomes("anna", "7,7,0")
	if a := s.do(http.MethodGet, s.http+"/v1/usage", ""); strings.Contains(a.body, "incomplete") {
		t.Error(a.body)
	}
	if err := other.stop(); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); ; <-time.After(50 * time.Millisecond) { // until it has left the cluster, as far as s knows
		if _, c, _ := s.change("reset?", ""); c.Members == nil && c.Unreached == nil {
			break
		}
		if time.Since(begun) > 30*time.Second {
			t.Fatal("it has not left after 30 s")
		}
	}
	for query, want := range map[string]string{
		"":                             `"used":3,"taken":3,"returned":0}],"incomplete":["=b"]}` + "\n",
		"customer=nobody":              `{"usage":[],"incomplete":["=b"]}` + "\n",
		"format=jsonl":                 `"used":3,"taken":3,"returned":0}` + "\n" + `{"incomplete":["=b"]}` + "\n",
		"format=csv":                   ",3,3,0\n,incomplete: =b,,,,\n",
		"format=csv&customer=nobody":   "limit,key,start,used,taken,returned\n,incomplete: =b,,,,\n",
		"format=jsonl&customer=nobody": `{"incomplete":["=b"]}` + "\n",
	} {
		if a := s.do(http.MethodGet, s.http+"/v1/usage?"+query, ""); a.status != http.StatusOK || !strings.HasSuffix(a.body, want) {
			t.Errorf("%s: %d %s, want %s", query, a.status, a.body, want)
		}
	}
	if a := s.do(http.MethodGet, s.admin+"/metrics", ""); !strings.Contains(a.body, "stint_usage_incomplete_total 6\n") {
		t.Error("the metric says no 6 incomplete answers")
	}
	if n := strings.Count(s.log.String(), "lacks what other members have counted"); n != 1 {
		t.Errorf("%d lines in\n%s", n, s.log.String())
	}
}

// TestUsageOfMembers: members authenticate to each other by certificates, and others are refused.
func TestUsageOfMembers(t *testing.T) {
	t.Parallel()
	backend := etcdtest.Start(t)
	ca, dir := testca.New(), t.TempDir()
	cert, key := ca.Issue(testca.Names{Server: true}).Write(dir, "tls")
	mine, minesKey := ca.Issue(testca.Names{CommonName: "member"}).Write(dir, "member")
	worker, workersKey := ca.Issue(testca.Names{CommonName: "worker"}).Write(dir, "worker")
	authorities, auth := testca.File(dir, "ca.crt", ca.PEM), filepath.Join(dir, "auth.yaml")
	write(t, auth, roles)
	var members []*service
	for _, name := range []string{"a", "b"} {
		members = append(members, start(t, monthOfMembers, joins("etcd://"+backend.Addr()+"/usage", name, func(o *server.Options) {
			o.GRPCTLS, o.HTTPTLS = server.TLSFiles{Cert: cert, Key: key, ClientCA: authorities}, server.TLSFiles{}
			o.Peer = server.Peer{CA: authorities, Cert: mine, Key: minesKey}
		})))
	}
	members[0].takes("anna", "3")
	members[1].takes("anna", "4")
	members[1].takes("bob", "5")
	for _, s := range members {
		s.usageBecomes("anna", "7,7,0")
		s.usageBecomes("bob", "5,5,0")
	}
	guarded := start(t, monthOfMembers, joins("etcd://"+backend.Addr()+"/guarded", "g", func(o *server.Options) {
		o.GRPCTLS, o.AuthFile = server.TLSFiles{Cert: cert, Key: key, ClientCA: authorities}, auth
		o.Peer = server.Peer{CA: authorities, Cert: mine, Key: minesKey}
	}))
	for _, c := range []struct {
		cert, key string
		code      codes.Code
	}{{worker, workersKey, codes.PermissionDenied}, {mine, minesKey, codes.OK}} {
		conn, err := client.Dial(guarded.Addrs().GRPC.String(), client.Options{TLSFiles: client.TLSFiles{CA: authorities, Cert: c.cert, Key: c.key}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = memberpb.NewMembersClient(conn).ReadUsage(t.Context(), &memberpb.UsageQuery{})
		if status.Code(err) != c.code {
			t.Errorf("%s: %v, want %v", c.cert, err, c.code)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMembersOfOtherVersions: fields that are not known are ignored, and questions that cannot be change nothing. What
// a former version sends is refused without a line in the log, and a member of it is named as missing, as is one whose
// address another has now. A server that is alone tells nothing.
func TestMembersOfOtherVersions(t *testing.T) {
	if testing.Short() {
		t.Skip("TestMembersShareALimit has the same goroutines: nothing for the race detector")
	}
	t.Parallel()
	backend := etcdtest.Start(t)
	url := "etcd://" + backend.Addr() + "/versions"
	s, other := start(t, monthOfMembers, joins(url, "a")), start(t, monthOfMembers, joins(url, "b"))
	s.takes("eve", "2")
	other.takes("eve", "3")
	s.usageBecomes("eve", "5,5,0")

	to := memberpb.NewMembersClient(s.conn)
	q := &memberpb.UsageQuery{Limit: []byte("month"), Key: []*memberpb.Attribute{{Name: []byte("customer"), Value: []byte("eve")}}}
	unknown := protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), "of a newer version")
	q.ProtoReflect().SetUnknown(unknown)
	q.Key[0].ProtoReflect().SetUnknown(unknown)
	page, err := to.ReadUsage(t.Context(), q)
	if err != nil || page.Member != "a" || len(page.Marks) != 1 || page.Marks[0].N != 2 || page.Next != nil {
		t.Errorf("%v, %v", page, err)
	}
	for _, q := range []*memberpb.UsageQuery{
		{After: []byte("\xff")},
		{Limit: []byte("no\xff")},
		{Key: []*memberpb.Attribute{nil}},
		{From: new(int64(1 << 62))},
		{To: new(int64(-1 << 62))},
		{Limit: []byte("month"), After: []byte(strings.Repeat("z", 5000))},
	} {
		if page, err := to.ReadUsage(t.Context(), q); err != nil || len(page.Marks) != 0 || page.Next != nil {
			t.Errorf("%v: %v, %v", q, page, err)
		}
	}

	await(t, "the last line of its start", func() bool { return strings.Contains(s.log.String(), "msg=ready") })
	lines := strings.Count(s.log.String(), "\n")
	for range 100 {
		if err := s.conn.Invoke(t.Context(), "/stint.member.v1.Members/Usage", &memberpb.UsageQuery{}, &memberpb.UsagePage{}); status.Code(err) != codes.Unimplemented {
			t.Fatal(err)
		}
	}
	if n := strings.Count(s.log.String(), "\n"); n != lines {
		t.Errorf("100 messages of the former version: %d more lines in\n%s", n-lines, s.log.String())
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	former := grpc.NewServer() // it has no such call
	defer former.Stop()
	go func() { _ = former.Serve(listener) }()
	register, err := etcd.New(etcd.Options{Endpoints: []string{backend.Addr()}, Prefix: "versions/"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for name, address := range map[string]string{"former": listener.Addr().String(), "gone": s.Addrs().GRPC.String()} {
		presence := cluster.NewPresence(cluster.PresenceOptions{Register: register, Self: cluster.Member{ID: name, Address: address}})
		running.Go(func() { presence.Run(ctx) })
	}
	defer func() {
		cancel()
		running.Wait()
		_ = register.Close()
	}()
	for begun := time.Now(); ; <-time.After(50 * time.Millisecond) {
		sums, incomplete := s.used()
		if slices.Equal(incomplete, []string{"former", "gone"}) {
			if sums["eve"] != 5 {
				t.Error(sums)
			}
			break
		}
		if time.Since(begun) > 30*time.Second {
			t.Fatal(sums, incomplete)
		}
	}

	alone := start(t, monthOfMembers)
	if _, err := memberpb.NewMembersClient(alone.conn).ReadUsage(t.Context(), &memberpb.UsageQuery{}, grpc.WaitForReady(true)); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a server that is alone: %v", err)
	}
}
