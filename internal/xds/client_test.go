package xds_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	control "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	pb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stint-io/stint/internal/xds"
)

// serve serves the discovery protocol, and returns the address.
func serve(t *testing.T, s discovery.AggregatedDiscoveryServiceServer) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(g, s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(l) }) // ends with Stop
	t.Cleanup(func() { g.Stop(); serving.Wait() })
	return l.Addr().String()
}

// options are those of a URL.
func options(t *testing.T, address, query string) xds.Options {
	t.Helper()
	o, err := xds.ParseURL("xds://" + address + "/node-1?backoff=10ms&backoff_max=40ms" + query)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// taken is what a client has given.
type taken struct {
	version string
	docs    []string
}

// run runs a client, whose takes are sent on.
func run(t *testing.T, o xds.Options, judge func(docs []string) error) (*xds.Client, <-chan taken) {
	t.Helper()
	got := make(chan taken, 1000)
	c := xds.New(o, slog.New(slog.DiscardHandler), func(version string, list []xds.Document) error {
		var docs []string
		for _, d := range list {
			docs = append(docs, d.Name+": "+strings.TrimSpace(string(d.Text)))
		}
		got <- taken{version, docs}
		if judge == nil {
			return nil
		}
		return judge(docs)
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return c, got
}

// rule is a resource with one rule.
func rule(name, domain, key string) *pb.RateLimitConfig {
	return &pb.RateLimitConfig{Name: name, Domain: domain, Descriptors: []*pb.RateLimitDescriptor{{
		Key: key, RateLimit: &pb.RateLimitPolicy{Unit: pb.RateLimitUnit_MINUTE, RequestsPerUnit: 3},
	}}}
}

// snapshot is a state of go-control-plane's cache.
func snapshot(t *testing.T, version string, list ...types.Resource) *cache.Snapshot {
	t.Helper()
	s, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: list})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// With go-control-plane as the server: what is there comes, what changes comes, what is refused is told to the server
// and kept out, and what comes after that is taken.
func TestControlPlane(t *testing.T) {
	states := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	nacks := make(chan string, 1000)
	versions := make(chan string, 1000)
	address := serve(t, control.NewServer(t.Context(), states, control.CallbackFuncs{StreamRequestFunc: func(_ int64, r *discovery.DiscoveryRequest) error {
		if r.Node.GetId() != "node-1" || r.Node.Metadata.GetFields()["zone"].GetStringValue() != "a" {
			return fmt.Errorf("the node is %v", r.Node)
		}
		if r.ErrorDetail != nil {
			nacks <- r.VersionInfo + " " + r.ErrorDetail.Message
		} else if r.ResponseNonce != "" {
			versions <- r.VersionInfo
		}
		return nil
	}}))
	put := func(s *cache.Snapshot) {
		t.Helper()
		if err := states.SetSnapshot(t.Context(), "node-1", s); err != nil {
			t.Fatal(err)
		}
	}
	put(snapshot(t, "1", rule("one", "edge", "a")))
	c, got := run(t, options(t, address, "&metadata=zone%3Da"), func(docs []string) error {
		if strings.Contains(docs[0], "bad") {
			return errors.New("this is bad")
		}
		return nil
	})
	want := `one: {"domain":"edge","descriptors":[{"key":"a","rate_limit":{"unit":"MINUTE","requests_per_unit":3}}]}`
	if first := <-got; first.version != "1" || len(first.docs) != 1 || first.docs[0] != want {
		t.Errorf("%+v", first)
	}
	if v := <-versions; v != "1" {
		t.Errorf("acknowledged %q", v)
	}
	put(snapshot(t, "2", rule("one", "edge", "bad")))
	if v := (<-got).version; v != "2" {
		t.Errorf("then came %q", v)
	}
	if n := <-nacks; n != "1 this is bad" {
		t.Errorf("the server was told %q", n)
	}
	if st := c.Status(); st.Version != "1" || st.Refused != "2" || st.Problem != "this is bad" || st.Away != "" {
		t.Errorf("%+v", st)
	}
	put(snapshot(t, "3", rule("one", "edge", "good"), rule("two", "api", "b")))
	if three := <-got; three.version != "3" || len(three.docs) != 2 {
		t.Errorf("then came %+v: what was refused was tried again", three)
	}
	if v := <-versions; v != "3" {
		t.Errorf("acknowledged %q", v)
	}
	if st := c.Status(); st.Version != "3" || st.Problem != "" || st.Refused != "" {
		t.Errorf("%+v", st)
	}
	// The server sent the refused version again as soon as it was refused. The pauses keep that from being a storm.
	if n := len(nacks); n > 8 {
		t.Errorf("%d refusals of one version more", n)
	}
}

// scripted is a server that does one thing for each stream.
type scripted struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	streams atomic.Int64
	do      func(n int64, s grpc.BidiStreamingServer[discovery.DiscoveryRequest, discovery.DiscoveryResponse]) error
}

func (s *scripted) StreamAggregatedResources(stream grpc.BidiStreamingServer[discovery.DiscoveryRequest, discovery.DiscoveryResponse]) error {
	return s.do(s.streams.Add(1), stream)
}

func packed(t *testing.T, c *pb.RateLimitConfig) *anypb.Any {
	t.Helper()
	a, err := anypb.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Whatever is wrong with a response is told to the server, and what is in force stays: the good one before it.
func TestBadResponses(t *testing.T) {
	good := packed(t, rule("one", "edge", "a"))
	for name, c := range map[string]struct {
		response *discovery.DiscoveryResponse
		reason   string
	}{
		"another type of response": {&discovery.DiscoveryResponse{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}, "want " + xds.TypeURL},
		"another type of resource": {&discovery.DiscoveryResponse{TypeUrl: xds.TypeURL, Resources: []*anypb.Any{good, {TypeUrl: "type.googleapis.com/x.Y"}}}, `resource 1 has the type "type.googleapis.com/x.Y"`},
		"no type of a resource":    {&discovery.DiscoveryResponse{TypeUrl: xds.TypeURL, Resources: []*anypb.Any{{}}}, `resource 0 has the type ""`},
		"broken bytes":             {&discovery.DiscoveryResponse{TypeUrl: xds.TypeURL, Resources: []*anypb.Any{{TypeUrl: xds.TypeURL, Value: []byte{0xff, 0xff}}}}, "resource 0 is no RateLimitConfig"},
		"refused by the taker":     {&discovery.DiscoveryResponse{TypeUrl: xds.TypeURL}, "there is nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			told := make(chan *discovery.DiscoveryRequest, 10)
			address := serve(t, &scripted{do: func(_ int64, s grpc.BidiStreamingServer[discovery.DiscoveryRequest, discovery.DiscoveryResponse]) error {
				if _, err := s.Recv(); err != nil {
					return err
				}
				c.response.VersionInfo, c.response.Nonce = "2", "n2"
				for _, r := range []*discovery.DiscoveryResponse{{VersionInfo: "1", Nonce: "n1", TypeUrl: xds.TypeURL, Resources: []*anypb.Any{good}}, c.response} {
					if err := s.Send(r); err != nil {
						return err
					}
					got, err := s.Recv()
					if err != nil {
						return err
					}
					told <- got
				}
				<-s.Context().Done()
				return nil
			}})
			client, _ := run(t, options(t, address, ""), func(docs []string) error {
				if len(docs) == 0 {
					return errors.New("there is nothing")
				}
				return nil
			})
			if ack := <-told; ack.VersionInfo != "1" || ack.ResponseNonce != "n1" || ack.ErrorDetail != nil {
				t.Errorf("%v", ack)
			}
			nack := <-told
			if nack.VersionInfo != "1" || nack.ResponseNonce != "n2" || !strings.Contains(nack.ErrorDetail.GetMessage(), c.reason) || nack.TypeUrl != c.response.TypeUrl {
				t.Errorf("%v\nwant %s", nack, c.reason)
			}
			if st := client.Status(); st.Version != "1" || !st.Loaded || st.Refused != "2" {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A server that closes each stream at once is asked again after waits that grow to the largest, and is not
// believed to be away for a stream that had an answer longer than that.
func TestClosesAtOnce(t *testing.T) {
	begin := time.Now()
	enough := make(chan struct{})
	s := &scripted{}
	s.do = func(n int64, _ grpc.BidiStreamingServer[discovery.DiscoveryRequest, discovery.DiscoveryResponse]) error {
		if n == 8 {
			close(enough)
		}
		return errors.New("go away")
	}
	c, _ := run(t, options(t, serve(t, s), ""), nil)
	<-enough
	// Half of 10, 20, 40, 40, 40, 40 and 40 ms at least.
	if took := time.Since(begin); took < 115*time.Millisecond {
		t.Errorf("8 streams in %v", took)
	}
	if st := c.Status(); st.Loaded || !strings.Contains(st.Away, "go away") {
		t.Errorf("%+v", st)
	}
}

// A stream that had an answer makes the next wait the shortest again, and each stream has the headers of the URL.
func TestAnswerEndsTheBackoff(t *testing.T) {
	begin := time.Now()
	enough := make(chan struct{})
	s := &scripted{}
	s.do = func(n int64, stream grpc.BidiStreamingServer[discovery.DiscoveryRequest, discovery.DiscoveryResponse]) error {
		if md, _ := metadata.FromIncomingContext(stream.Context()); strings.Join(md.Get("authorization"), ",") != "Bearer x" {
			t.Errorf("stream %d has the headers %v", n, md)
		}
		if n == 13 {
			close(enough)
		}
		return stream.Send(&discovery.DiscoveryResponse{VersionInfo: "1", TypeUrl: xds.TypeURL})
	}
	o := options(t, serve(t, s), "&header_password=Authorization:Bearer%20x")
	o.BackoffMax = time.Hour
	run(t, o, nil)
	<-enough
	// The waits would double from 10 ms to 20 s, and be 20 s together at least.
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("13 streams in %v", took)
	}
}

// A version that is refused is said once, and the next one too, also when it is refused for the same reason.
func TestRefusedForTheSameReason(t *testing.T) {
	done := make(chan struct{})
	s := &scripted{do: func(_ int64, stream grpc.BidiStreamingServer[discovery.DiscoveryRequest, discovery.DiscoveryResponse]) error {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		for _, version := range []string{"1", "1", "2"} {
			if err := stream.Send(&discovery.DiscoveryResponse{VersionInfo: version, TypeUrl: xds.TypeURL}); err != nil {
				return err
			}
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
		close(done)
		<-stream.Context().Done()
		return nil
	}}
	var said lines
	c := xds.New(options(t, serve(t, s), ""), slog.New(slog.NewTextHandler(&said, nil)), func(string, []xds.Document) error { return errors.New("there is nothing") })
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	<-done
	if st := c.Status(); st.Refused != "2" || st.Problem != "there is nothing" {
		t.Errorf("%+v", st)
	}
	cancel()
	running.Wait()
	if n := strings.Count(said.String(), "is refused"); n != 2 {
		t.Errorf("said %d times: %s", n, said.String())
	}
}

// lines are those of a log.
type lines struct {
	mu sync.Mutex
	strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.Write(p)
}

// A message above the bound ends the stream, and is no configuration; the next that is smaller is taken.
func TestHugeMessage(t *testing.T) {
	s := &scripted{}
	s.do = func(n int64, stream grpc.BidiStreamingServer[discovery.DiscoveryRequest, discovery.DiscoveryResponse]) error {
		key := "a"
		if n == 1 {
			key = strings.Repeat("x", 5000)
		}
		if err := stream.Send(&discovery.DiscoveryResponse{VersionInfo: fmt.Sprint(n), TypeUrl: xds.TypeURL, Resources: []*anypb.Any{packed(t, rule("one", "edge", key))}}); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	}
	c, got := run(t, options(t, serve(t, s), "&max_bytes=2000"), nil)
	if first := <-got; first.version != "2" || strings.Contains(first.docs[0], "xxx") {
		t.Errorf("%+v", first)
	}
	if st := c.Status(); st.Away != "" {
		t.Errorf("%+v", st)
	}
}

// A server that never answers is waited for: nothing is in force, and the end of ctx ends the wait.
func TestNeverAnswers(t *testing.T) {
	asked := make(chan struct{}, 10)
	c, _ := run(t, options(t, serve(t, &scripted{do: func(_ int64, s grpc.BidiStreamingServer[discovery.DiscoveryRequest, discovery.DiscoveryResponse]) error {
		if _, err := s.Recv(); err != nil {
			return err
		}
		asked <- struct{}{}
		<-s.Context().Done()
		return nil
	}}), ""), nil)
	<-asked
	if st := c.Status(); st != (xds.Status{}) {
		t.Errorf("%+v", st)
	}
}

// A server that was started anew sends the same state again: it is acknowledged and not tried again, also when its
// versions begin again.
func TestSameAgain(t *testing.T) {
	acks := make(chan string, 10)
	s := &scripted{}
	s.do = func(n int64, stream grpc.BidiStreamingServer[discovery.DiscoveryRequest, discovery.DiscoveryResponse]) error {
		first, err := stream.Recv()
		if err != nil {
			return err
		}
		if first.VersionInfo != "" {
			return fmt.Errorf("the first request of a stream names version %q", first.VersionInfo)
		}
		key := map[bool]string{true: "a", false: "b"}[n < 3]
		if err := stream.Send(&discovery.DiscoveryResponse{VersionInfo: "1", Nonce: "n", TypeUrl: xds.TypeURL, Resources: []*anypb.Any{packed(t, rule("one", "edge", key))}}); err != nil {
			return err
		}
		if got, err := stream.Recv(); err != nil || got.ErrorDetail != nil {
			return fmt.Errorf("%v %v", got, err)
		}
		acks <- key
		if n == 3 {
			<-stream.Context().Done()
		}
		return nil
	}
	_, got := run(t, options(t, serve(t, s), ""), nil)
	for range 3 {
		<-acks
	}
	if a, b := <-got, <-got; !strings.Contains(a.docs[0], `"a"`) || !strings.Contains(b.docs[0], `"b"`) || len(got) > 0 {
		t.Errorf("%v, %v and %d more", a, b, len(got))
	}
}

// Every field of a resource is in its document.
func TestDocument(t *testing.T) {
	full := &pb.RateLimitConfig{Domain: "<edge>", Descriptors: []*pb.RateLimitDescriptor{{
		Key: "k", Value: "v\u2028\x01\"", ShadowMode: true, QuotaMode: true, DetailedMetric: true, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"team": structpb.NewStringValue("a")}},
		RateLimit:   &pb.RateLimitPolicy{Unlimited: true, Name: "n", Replaces: []*pb.RateLimitReplace{{Name: "m"}}},
		Descriptors: []*pb.RateLimitDescriptor{{Key: "below", RateLimit: &pb.RateLimitPolicy{Unit: pb.RateLimitUnit_UNKNOWN}}, nil},
	}}}
	address := serve(t, &scripted{do: func(_ int64, s grpc.BidiStreamingServer[discovery.DiscoveryRequest, discovery.DiscoveryResponse]) error {
		if err := s.Send(&discovery.DiscoveryResponse{VersionInfo: "1", TypeUrl: xds.TypeURL, Resources: []*anypb.Any{packed(t, full)}}); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}})
	full.Descriptors[0].Descriptors[1] = &pb.RateLimitDescriptor{}
	_, got := run(t, options(t, address, ""), nil)
	want := `resource 0: {"domain":"<edge>","descriptors":[{"key":"k","value":"v\u2028\u0001\"","rate_limit":{"requests_per_unit":0,"unlimited":true,"name":"n","replaces":[{"name":"m"}]},` +
		`"descriptors":[{"key":"below","rate_limit":{"unit":"UNKNOWN","requests_per_unit":0}},{"key":""}],"shadow_mode":true,"quota_mode":true,"detailed_metric":true,"metadata":{"team":"a"}}]}`
	if d := <-got; d.docs[0] != want {
		t.Errorf("%s\nwant\n%s", d.docs[0], want)
	}
}

// A server that answers each acknowledgement with the same again is not answered as fast as it can: that would take a
// processor here and there.
func TestSameWithoutEnd(t *testing.T) {
	const n = 5
	begin, enough := time.Now(), make(chan struct{})
	c, got := run(t, options(t, serve(t, &scripted{do: func(_ int64, stream grpc.BidiStreamingServer[discovery.DiscoveryRequest, discovery.DiscoveryResponse]) error {
		for i := 0; ; i++ {
			if r, err := stream.Recv(); err != nil || r.ErrorDetail != nil {
				return fmt.Errorf("%v %v", r, err)
			}
			if i == n {
				close(enough)
			}
			if err := stream.Send(&discovery.DiscoveryResponse{VersionInfo: "1", Nonce: fmt.Sprint(i), TypeUrl: xds.TypeURL, Resources: []*anypb.Any{packed(t, rule("one", "edge", "a"))}}); err != nil {
				return err
			}
		}
	}}), ""), nil)
	<-enough
	// 100, 200 and 400 ms, after the first that is the same.
	if took := time.Since(begin); took < 700*time.Millisecond {
		t.Errorf("%d answers in %v", n, took)
	}
	if first := <-got; first.version != "1" || len(got) > 0 || c.Status().Problem != "" {
		t.Errorf("%+v and %d more, %+v", first, len(got), c.Status())
	}
}
