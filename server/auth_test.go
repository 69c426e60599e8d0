package server_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/testca"
	"github.com/stint-io/stint/server"
)

const (
	takeToken   = "token-of-the-edge-0"
	leaseToken  = "token-of-orders-000"
	adminToken  = "token-of-the-ops-00"
	memberToken = "token-of-a-member-0"
)

const identities = `identities:
  - {name: edge, token_file: take.token, certificate: {cn: edge}, roles: [take]}
  - {name: orders, token_file: lease.token, certificate: {uri: "spiffe://shop/orders"}, roles: [{lease: {limits: ["orders.*"], max_streams: 2}}]}
  - {name: ops, token_file: admin.token, roles: [admin]}
  - {name: peer, token_file: member.token, roles: [member]}
`

const authLimits = `limits:
  - {name: per-user, key: [user], rate: 1/hour, burst: 1000000}
  - {name: seen-by-limits, match: {"header:x-stint-token": "*"}, rate: 1/hour, burst: 1}
  - {name: orders.rate, rate: 1000/s, burst: 1000, sharing: leased}
  - {name: mail.rate, rate: 1000/s, burst: 1000, sharing: leased}
`

// startAuth starts a server that asks on every port who comes.
func startAuth(t *testing.T, adjust ...func(*server.Options)) *guarded {
	t.Helper()
	dir := t.TempDir()
	for name, token := range map[string]string{"take": takeToken, "lease": leaseToken, "admin": adminToken, "member": memberToken} {
		testca.File(dir, name+".token", []byte(token+"\n"))
	}
	file := testca.File(dir, "auth.yaml", []byte(identities))
	g := startTLS(t, authLimits, true, append(adjust, func(o *server.Options) { o.AuthFile, o.FirstStart, o.StateDir = file, true, dir+"/state" })...)
	g.dir = dir
	return g
}

func withToken(ctx context.Context, tokens ...string) context.Context {
	for _, token := range tokens {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return ctx
}

// hold sends a report and returns the first answer.
func (g *guarded) first(ctx context.Context, conn *grpc.ClientConn, r *leasepb.Report) (*leasepb.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stream, err := leasepb.NewLeasesClient(conn).Hold(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(r); err != nil {
		_, err = stream.Recv()
		return nil, err
	}
	return stream.Recv()
}

// TestRolesOnEveryPort: each identity may do what its roles say on each port, by its token and by its
// certificate; a stranger may ask for the health. Every refusal says the way out and is counted.
func TestRolesOnEveryPort(t *testing.T) {
	g := startAuth(t, func(o *server.Options) { o.AdminToken = "the-former-admin-token" })
	web, conn := g.web(g.config(nil), true), g.dial(g.config(nil))
	adminURL := "https://" + g.Addrs().Admin.String()
	for _, tt := range []struct {
		token                    string
		take, rls, lease, manage bool
	}{
		{"", false, false, false, false},
		{"token-of-nobody-0000", false, false, false, false},
		{takeToken, true, true, false, false},
		{leaseToken, false, false, true, false},
		{adminToken, false, false, false, true},
		{memberToken, false, false, true, false},
		{"the-former-admin-token", false, false, false, true},
	} {
		known := tt.token != "" && tt.token != "token-of-nobody-0000"
		asker := &asker{g, web, conn, tt.token, http.StatusUnauthorized}
		if known && tt.token != "the-former-admin-token" {
			asker.refused = http.StatusForbidden
		}
		asker.overHTTP(tt.take, tt.manage)
		asker.overGRPC(tt.rls, tt.lease)
	}
	g.byCertificate()
	_, metrics, _ := fetch(web, "GET", adminURL+"/metrics", "", "Authorization", "Bearer "+adminToken)
	for _, series := range []string{`stint_auth_identities 4`, `stint_auth_refused_total{listener="http",reason="unauthenticated"} `, `stint_auth_refused_total{listener="grpc",reason="denied"} `, `stint_auth_refused_total{listener="admin",reason="denied"} `} {
		_, after, ok := strings.Cut(metrics, series)
		if !ok || strings.HasPrefix(after, "0\n") {
			t.Errorf("the metrics lack %s", series)
		}
	}
	if strings.Contains(metrics+g.log.String(), takeToken) {
		t.Error("a token is in the metrics or the log")
	}
}

// asker asks everything with one token.
type asker struct {
	*guarded
	web     *http.Client
	conn    *grpc.ClientConn
	token   string
	refused int // status of what it may not
}

func (a *asker) overHTTP(take, manage bool) {
	httpURL, adminURL := "https://"+a.Addrs().HTTP.String(), "https://"+a.Addrs().Admin.String()
	var bearer []string
	if a.token != "" {
		bearer = []string{"Authorization", "Bearer " + a.token}
	}
	want := func(ok bool) int {
		if ok {
			return 200
		}
		return a.refused
	}
	for _, path := range []string{"/v1/take", "/v1/explain", "/json"} {
		body := takeOfU
		if path == "/json" {
			body = `{"domain":"any","descriptors":[{"entries":[{"key":"user","value":"u"}]}]}`
		}
		code, text, err := fetch(a.web, "POST", httpURL+path, body, bearer...)
		if err != nil || code != want(take) || code != 200 && !strings.Contains(text, "--auth") && !strings.Contains(text, "Authorization: Bearer") {
			a.t.Errorf("%q, %s: %d %s, %v", a.token, path, code, text, err)
		}
	}
	for _, path := range []string{"/metrics", "/metrics/instances", "/v1/leases", "/rlconfig"} {
		if code, text, err := fetch(a.web, "GET", adminURL+path, "", bearer...); err != nil || code != want(manage) {
			a.t.Errorf("%q, %s: %d %s, %v", a.token, path, code, text, err)
		}
	}
	if code, _, err := fetch(a.web, "POST", adminURL+"/admin/reload", "", bearer...); err != nil || code != want(manage) {
		a.t.Errorf("%q, reload: %d, %v", a.token, code, err)
	}
	for _, url := range []string{httpURL + "/healthz", httpURL + "/healthcheck", adminURL + "/healthz", adminURL + "/readyz"} {
		if code, _, err := fetch(a.web, "GET", url, "", bearer...); err != nil || code == 401 || code == 403 {
			a.t.Errorf("%q, %s: %d, %v", a.token, url, code, err)
		}
	}
}

func (a *asker) overGRPC(rls, lease bool) {
	ctx := a.t.Context()
	if a.token != "" {
		ctx = withToken(ctx, a.token)
	}
	code := func(ok bool) codes.Code {
		switch {
		case ok:
			return codes.OK
		case a.refused == http.StatusForbidden:
			return codes.PermissionDenied
		}
		return codes.Unauthenticated
	}
	_, err := pb.NewRateLimitServiceClient(a.conn).ShouldRateLimit(ctx, request("any", 1, descriptor("user=u")))
	if status.Code(err) != code(rls) {
		a.t.Errorf("%q, RLS: %v", a.token, err)
	}
	_, err = a.first(ctx, a.conn, asks("one", "orders.rate"))
	if status.Code(err) != code(lease) {
		a.t.Errorf("%q, leases: %v", a.token, err)
	}
	levels, err := leasepb.NewLeasesClient(a.conn).Replicate(ctx)
	if err == nil {
		_ = levels.Send(&leasepb.Confirmation{Replica: 1}) // the status says why not
		_, err = levels.Recv()
	}
	want := code(false)
	if a.token == memberToken {
		want = codes.Unavailable // there is no cluster
	}
	if status.Code(err) != want {
		a.t.Errorf("%q, replication: %v, want %v", a.token, err, want)
	}
	_, err = leasepb.NewLeasesClient(a.conn).Ask(ctx, &leasepb.Asks{Asks: []*leasepb.Question{{Limit: "orders.rate"}}})
	if want = code(false); a.token == memberToken {
		want = codes.OK
	}
	if status.Code(err) != want {
		a.t.Errorf("%q, asks: %v, want %v", a.token, err, want)
	}
	if _, err := healthpb.NewHealthClient(a.conn).Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
		a.t.Errorf("%q, health: %v", a.token, err)
	}
	if err := a.conn.Invoke(ctx, "/stint.cluster.v1.Members/Anything", &leasepb.Report{}, &leasepb.Grant{}); status.Code(err) == codes.OK {
		a.t.Errorf("%q: a method that there is not answers", a.token)
	}
	reflecting, err := reflectionpb.NewServerReflectionClient(a.conn).ServerReflectionInfo(ctx)
	if err == nil {
		_ = reflecting.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
		_, err = reflecting.Recv()
	}
	if (err == nil) != (a.refused == http.StatusForbidden) {
		a.t.Errorf("%q, reflection: %v", a.token, err)
	}
}

// byCertificate asks as identities that have a certificate and no token.
func (g *guarded) byCertificate() {
	httpURL := "https://" + g.Addrs().HTTP.String()
	for _, names := range []testca.Names{{CommonName: "edge"}, {URI: "spiffe://shop/orders"}, {CommonName: "stranger"}} {
		c := g.config(&names)
		code, _, err := fetch(g.web(c, true), "POST", httpURL+"/v1/take", takeOfU)
		want := map[string]int{"edge": 200, "": 403, "stranger": 401}[names.CommonName]
		if err != nil || code != want {
			g.t.Errorf("%+v: %d, %v, want %d", names, code, err, want)
		}
		_, err = pb.NewRateLimitServiceClient(g.dial(c)).ShouldRateLimit(g.t.Context(), request("any", 1, descriptor("user=u")))
		if got := map[string]codes.Code{"edge": codes.OK, "": codes.PermissionDenied, "stranger": codes.Unauthenticated}[names.CommonName]; status.Code(err) != got {
			g.t.Errorf("%+v: %v", names, err)
		}
	}
}

// TestSmuggledTokens: a token counts once and where it belongs. What a gateway's client sends as
// Authorization proves nothing on a decision endpoint, and no limit sees the gateway's token.
func TestSmuggledTokens(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	g := startAuth(t)
	web, take := g.web(g.config(nil), false), "https://"+g.Addrs().HTTP.String()+"/v1/take"
	gate := "https://" + g.Addrs().HTTP.String() + "/v1/gate/forward-auth"
	for _, tt := range []struct {
		url    string
		header []string
		want   int
	}{
		{take, []string{"Authorization", "Bearer " + takeToken}, 200},
		{take, []string{"authorization", "bearer " + takeToken}, 200},
		{take, []string{"X-Stint-Token", takeToken}, 200},
		{take, []string{"Authorization", "Bearer " + takeToken, "Authorization", "Bearer " + takeToken}, 401},
		{take, []string{"Authorization", "Bearer " + takeToken, "X-Stint-Token", takeToken}, 401},
		{take, []string{"X-Stint-Token", takeToken, "X-Stint-Token", adminToken}, 401},
		{take, []string{"Authorization", "Bearer " + takeToken + ", Bearer " + adminToken}, 401},
		{take, []string{"Authorization", "Bearer  " + takeToken}, 401},
		{take, []string{"Authorization", takeToken}, 401},
		{take, []string{"Authorization", "Basic " + takeToken}, 401},
		{take, []string{"Proxy-Authorization", "Bearer " + takeToken}, 401},
		{take, []string{"X_Stint_Token", takeToken}, 401},
		{take + "?access_token=" + takeToken, nil, 401},
		{take, []string{"Authorization", "Bearer " + strings.Repeat("x", 5000)}, 401},
		{take, []string{"Authorization", "Bearer " + strings.Repeat("x", 100_000)}, 431},
		{gate, []string{"Authorization", "Bearer " + takeToken}, 401},
		{gate, []string{"X-Stint-Token", takeToken, "Authorization", "Bearer of-the-user"}, 200},
		{gate, []string{"X-Stint-Token", takeToken}, 200},
		{gate, []string{"X-Stint-Token", "guess", "X-Stint-Token", takeToken}, 401},
	} {
		body, method := takeOfU, "POST"
		if tt.url == gate {
			body, method = "", "GET"
			tt.header = append(tt.header, "X-Forwarded-For", "192.0.2.7")
		}
		if code, text, err := fetch(web, method, tt.url, body, tt.header...); err != nil || code != tt.want {
			t.Errorf("%s %.120q: %d %s, %v, want %d", tt.url, tt.header, code, text, err, tt.want)
		}
	}
	// A valid certificate does not make up for a wrong token.
	if code, _, err := fetch(g.web(g.config(&testca.Names{CommonName: "edge"}), false), "POST", take, takeOfU, "Authorization", "Bearer wrong"); err != nil || code != 401 {
		t.Errorf("a certificate with a wrong token: %d, %v", code, err)
	}
	// Nor for two tokens.
	if code, _, err := fetch(g.web(g.config(&testca.Names{CommonName: "edge"}), false), "POST", take, takeOfU, "X-Stint-Token", takeToken, "X-Stint-Token", takeToken); err != nil || code != 401 {
		t.Errorf("a certificate with two tokens: %d, %v", code, err)
	}
	conn := g.dial(g.config(nil))
	for _, ctx := range []context.Context{withToken(t.Context(), takeToken, takeToken), withToken(t.Context(), strings.Repeat("x", 5000)), metadata.AppendToOutgoingContext(t.Context(), "x-stint-token", takeToken)} {
		if _, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request("any", 1, descriptor("user=u"))); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%v", err)
		}
	}
}

// TestTokenRotated: a token is replaced under load by way of a file with both, and no request fails; the old
// one is then refused, and a stream that it has begun ends.
func TestTokenRotated(t *testing.T) {
	g := startAuth(t)
	web, take := g.web(g.config(nil), true), "https://"+g.Addrs().HTTP.String()+"/v1/take"
	try := func(token string) int {
		code, _, err := fetch(web, "POST", take, takeOfU, "Authorization", "Bearer "+token)
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	stream, err := leasepb.NewLeasesClient(g.dial(g.config(nil))).Hold(withToken(t.Context(), leaseToken))
	if err != nil {
		t.Fatal(err)
	}
	report := asks("one", "orders.rate")
	if err := stream.Send(report); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	const next = "token-of-the-edge-1"
	testca.File(g.dir, "take.token", []byte(takeToken+"\n"+next+"\n"))
	await(t, "the new token", func() bool {
		if code := try(takeToken); code != 200 {
			t.Fatalf("the old token is refused with %d while both are there", code)
		}
		return try(next) == 200
	})
	testca.File(g.dir, "take.token", []byte(next+"\n"))
	await(t, "the old token to be refused", func() bool {
		if code := try(next); code != 200 {
			t.Fatalf("the new token is refused with %d", code)
		}
		return try(takeToken) == 401
	})
	testca.File(g.dir, "lease.token", []byte("another-token-of-orders\n"))
	sending, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := report.Number; sending.Err() == nil; <-tick.C {
			n++
			if stream.Send(&leasepb.Report{Instance: report.Instance, Session: report.Session, Number: n, Stamp: int64(n)}) != nil {
				return
			}
		}
	}()
	for err = nil; err == nil; _, err = stream.Recv() {
	}
	if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "the token is not known") {
		t.Errorf("the stream ends with %v", err)
	}
	// A file with a fault changes nothing.
	testca.File(g.dir, "auth.yaml", []byte("identities: [{name: edge}]\n"))
	await(t, "the fault to be logged", func() bool { return strings.Contains(g.log.String(), "the identities are refused") })
	if code := try(next); code != 200 {
		t.Errorf("after a file with a fault: %d", code)
	}
}

// TestOneStreamDoesNotTakeAll: what an identity may not have is refused or lowered: limits of others, bands
// and weights above its highest, more streams than it may have, names of others' instances.
func TestOneStreamDoesNotTakeAll(t *testing.T) {
	g := startAuth(t)
	files := t.TempDir()
	ca, token := testca.File(files, "ca.crt", g.ca.PEM), testca.File(files, "token", []byte(leaseToken))
	open := func(instance string, o client.LimitOptions, demand float64) *client.Limiter {
		c := runClient(t, client.Options{Address: g.Addrs().GRPC.String(), Instance: instance, TLSFiles: client.TLSFiles{CA: ca}, TokenFile: token})
		o.Estimator = client.Declared
		l, err := c.Limit("orders.rate", o)
		if err != nil {
			t.Fatal(err)
		}
		l.Demand(demand)
		if _, err := c.Limit("mail.rate", client.LimitOptions{}); err != nil {
			t.Fatal(err)
		}
		return l
	}
	honest := open("honest", client.LimitOptions{}, 1000)
	await(t, "the honest instance to have all", func() bool { return honest.Lease().Rate > 900 })
	greedy := open("greedy", client.LimitOptions{Band: 255, Weight: 1 << 31}, 1e6)
	await(t, "both to have a half", func() bool {
		return honest.Lease().Rate > 400 && honest.Lease().Rate < 600 && greedy.Lease().Rate > 400
	})
	conn := g.dial(g.config(nil))
	if _, err := g.first(withToken(t.Context(), leaseToken), conn, asks("third", "orders.rate")); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "max_streams") {
		t.Errorf("a third stream of two: %v", err)
	}
	// A member that uses the name of an instance does not become it.
	if grant, err := g.first(withToken(t.Context(), memberToken), conn, asks("honest", "mail.rate")); err != nil || grant.GetStatus() != leasepb.Status_STATUS_OK {
		t.Errorf("an instance of another identity with that name: %v, %v", grant, err)
	}
	_, leases, err := fetch(g.web(g.config(nil), true), "GET", "https://"+g.Addrs().Admin.String()+"/v1/leases", "", "Authorization", "Bearer "+adminToken)
	if err != nil || !strings.Contains(leases, `"orders/honest"`) || !strings.Contains(leases, `"orders/greedy"`) || !strings.Contains(leases, `"peer/honest"`) {
		t.Errorf("%s, %v", leases, err)
	}
	// The band is lowered, and stays that of everybody: the honest one keeps its half.
	if rate := honest.Lease().Rate; rate < 400 {
		t.Errorf("the honest instance has %v left", rate)
	}
}

// TestForgedEpoch: an epoch that no coordinator has makes this one begin anew when a member reports it, which
// speaks for a server, and not when an instance does.
func TestForgedEpoch(t *testing.T) {
	g := startAuth(t)
	conn := g.dial(g.config(nil))
	const high = 1 << 61
	for _, tt := range []struct {
		token    string
		believed bool
	}{{leaseToken, false}, {memberToken, true}} {
		r := asks("liar", "orders.rate")
		r.Epoch = high
		r.Demands = append(r.Demands, &leasepb.Demand{Handle: 2, Resource: &leasepb.Resource{Limit: "mail.rate"}}, &leasepb.Demand{Handle: 3, Resource: &leasepb.Resource{Limit: "no-such-limit"}})
		grant, err := g.first(withToken(t.Context(), tt.token), conn, r)
		if err != nil || (grant.GetEpoch() > high) != tt.believed {
			t.Errorf("%s: %v, %v", tt.token, grant, err)
		}
		for _, s := range grant.GetShares() {
			if want := s.GetHandle() > 1 && !tt.believed; (s.GetStatus() == leasepb.Status_STATUS_FORBIDDEN) != want {
				t.Errorf("%s: handle %d: %v", tt.token, s.GetHandle(), s.GetStatus())
			}
		}
		if strings.Contains(g.log.String(), "has heard a coordinator") != tt.believed || strings.Count(g.log.String(), "is not believed") != 1 {
			t.Errorf("%s: the log:\n%s", tt.token, g.log)
		}
	}
}

// runClient runs a client until the test ends.
func runClient(t *testing.T, o client.Options) *client.Client {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the client ended with %v", err)
		}
	})
	return c
}

// TestStrangersBeforeTheHandshake: bytes that are no TLS, and connections that say nothing, get nothing and
// hold up nobody.
func TestStrangersBeforeTheHandshake(t *testing.T) {
	g := startAuth(t)
	for _, addr := range []net.Addr{g.Addrs().HTTP, g.Addrs().GRPC, g.Addrs().Admin} {
		for _, text := range []string{"", "GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", strings.Repeat("\x16\x03\x01\xff", 20_000)} {
			conn, err := net.Dial("tcp", addr.String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = fmt.Fprint(conn, text) // it may be closed already
		}
		c, err := tls.Dial("tcp", addr.String(), &tls.Config{RootCAs: g.ca.Pool(), NextProtos: []string{"h2"}})
		if err != nil {
			t.Errorf("%v after them: %v", addr, err)
			continue
		}
		c.Close()
	}
}

// asks is the first report of an instance that wants a part of a limit without a key.
func asks(instance, limit string) *leasepb.Report {
	r := wants(instance, limit, "")
	r.Demands[0].Resource.Key = nil
	return r
}
