package server_test

import (
	"context"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/etcdtest"
	"github.com/stint-io/stint/internal/gen/memberpb"
	"github.com/stint-io/stint/internal/testca"
	"github.com/stint-io/stint/server"
)

const monthOfMembers = "limits: [{name: month, key: [customer], algorithm: fixed_window, rate: 1000/month}]\n"

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

// TestUsageOfMembers: every member answers for all, with one coordinator and with several; they speak by the
// certificates of members, and whoever is none changes nothing.
func TestUsageOfMembers(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	ca, dir := testca.New(), t.TempDir()
	cert, key := ca.Issue(testca.Names{Server: true}).Write(dir, "tls")
	mine, minesKey := ca.Issue(testca.Names{CommonName: "member"}).Write(dir, "member")
	worker, workersKey := ca.Issue(testca.Names{CommonName: "worker"}).Write(dir, "worker")
	authorities, auth := testca.File(dir, "ca.crt", ca.PEM), filepath.Join(dir, "auth.yaml")
	write(t, auth, roles)
	var members []*service
	for _, name := range []string{"a", "b"} {
		members = append(members, start(t, monthOfMembers, joins("etcd://"+etcd.Addr()+"/usage", name, func(o *server.Options) {
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
	guarded := start(t, monthOfMembers, joins("etcd://"+etcd.Addr()+"/guarded", "g", func(o *server.Options) {
		o.GRPCTLS, o.AuthFile = server.TLSFiles{Cert: cert, Key: key, ClientCA: authorities}, auth
		o.Peer = server.Peer{CA: authorities, Cert: mine, Key: minesKey}
	}))
	lie := &memberpb.Marks{Marks: []*memberpb.Mark{{Key: []byte("month\x00customer=eve\x0001795518000torigin"), N: 900}}}
	for _, c := range []struct {
		cert, key string
		code      codes.Code
	}{{worker, workersKey, codes.PermissionDenied}, {mine, minesKey, codes.OK}} {
		conn, err := client.Dial(guarded.Addrs().GRPC.String(), client.Options{TLSFiles: client.TLSFiles{CA: authorities, Cert: c.cert, Key: c.key}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = memberpb.NewMembersClient(conn).Usage(t.Context(), lie)
		if status.Code(err) != c.code {
			t.Errorf("%s: %v, want %v", c.cert, err, c.code)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMembersOfOtherVersions: fields that are not known are ignored; what cannot be is refused, and changes nothing. A
// server that is alone takes nothing.
func TestMembersOfOtherVersions(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	for _, shards := range []int{1, 3} {
		url := "etcd://" + etcd.Addr() + "/versions" + string(rune('0'+shards))
		s := start(t, monthOfMembers, joins(url, "a", func(o *server.Options) { o.Cluster.Shards = shards }))
		other := start(t, monthOfMembers, joins(url, "b", func(o *server.Options) { o.Cluster.Shards = shards }))
		to := memberpb.NewMembersClient(s.conn)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		hour := time.Now().UTC().Truncate(time.Hour).Unix()
		mark := &memberpb.Mark{Key: []byte("month\x00customer=eve\x000" + strconv.FormatInt(hour, 10) + "torigin"), N: 9}
		m := &memberpb.Marks{Marks: []*memberpb.Mark{mark}}
		unknown := protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), "of a newer version")
		m.ProtoReflect().SetUnknown(unknown)
		mark.ProtoReflect().SetUnknown(unknown)
		if _, err := to.Usage(ctx, m); err != nil {
			t.Error(err)
		}
		s.usageBecomes("eve", "9,9,0")
		for _, bad := range []*memberpb.Marks{
			{Marks: []*memberpb.Mark{{Key: []byte("month"), N: 1}}}, {Marks: []*memberpb.Mark{nil}}, {Marks: []*memberpb.Mark{{Key: mark.Key, N: 1 << 63}}},
		} {
			if _, err := to.Usage(ctx, bad); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%v: %v", bad, err)
			}
		}
		s.takes("eve", "2")
		s.usageBecomes("eve", "11,11,0")
		s.takes("bob", "3")
		other.usageBecomes("bob", "3,3,0")
	}
	alone := start(t, monthOfMembers)
	if _, err := memberpb.NewMembersClient(alone.conn).Usage(t.Context(), &memberpb.Marks{}, grpc.WaitForReady(true)); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a server that is alone: %v", err)
	}
}
