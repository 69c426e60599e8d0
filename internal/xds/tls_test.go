package xds_test

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/stint-io/stint/internal/testca"
	"github.com/stint-io/stint/internal/xds"
)

// By TLS both sides show certificates, as Envoy Gateway has it. A server of another authority is not believed, and what is
// in force stays.
func TestMutualTLS(t *testing.T) {
	ca, other := testca.New(), testca.New()
	dir := t.TempDir()
	cert, key := ca.Issue(testca.Names{CommonName: "envoy-ratelimit"}).Write(dir, "client")
	good, bad := testca.File(dir, "ca.crt", ca.PEM), testca.File(dir, "other.crt", other.PEM)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{ca.Issue(testca.Names{CommonName: "gateway", Server: true, DNS: "envoy-gateway"}).TLS()},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
	})))
	discovery.RegisterAggregatedDiscoveryServiceServer(g, &scripted{do: func(_ int64, s grpc.BidiStreamingServer[discovery.DiscoveryRequest, discovery.DiscoveryResponse]) error {
		if err := s.Send(&discovery.DiscoveryResponse{VersionInfo: "1", TypeUrl: xds.TypeURL, Resources: []*anypb.Any{packed(t, rule("one", "edge", "a"))}}); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}})
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(l) }) // ends with Stop
	t.Cleanup(func() { g.Stop(); serving.Wait() })
	open := func(ca string) xds.Options {
		t.Helper()
		q := url.Values{"ca": {ca}, "cert": {cert}, "key": {key}, "server_name": {"envoy-gateway"}, "backoff": {"10ms"}, "backoff_max": {"20ms"}}
		o, err := xds.ParseURL("xdss://" + l.Addr().String() + "/node-1?" + q.Encode())
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	c, got := run(t, open(good), nil)
	if first := <-got; first.version != "1" || c.Status().Away != "" {
		t.Errorf("%+v %+v", first, c.Status())
	}
	said := make(said, 10)
	stranger := xds.New(open(bad), slog.New(slog.NewTextHandler(said, nil)), func(string, []xds.Document) error {
		t.Error("a server of another authority was believed")
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { stranger.Run(ctx) })
	if line := <-said; !strings.Contains(line, "unknown authority") {
		t.Errorf("%s", line)
	}
	cancel()
	running.Wait()
	if st := stranger.Status(); st.Loaded {
		t.Errorf("%+v", st)
	}
}

// said are lines of a log.
type said chan string

// Write implements [io.Writer].
func (s said) Write(line []byte) (int, error) {
	s <- string(line)
	return len(line), nil
}
