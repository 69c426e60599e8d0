package server_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stint-io/stint/limit"
)

const inputConfig = "limits:\n  - {name: per-ip, key: [ip], rate: 100/hour}\n"

// unchanged runs f against a server and checks that the bucket it aims at is as
// full as before, to the unit.
func unchanged(t *testing.T, yaml string, f func(s *service)) {
	t.Helper()
	s := start(t, yaml)
	attributes := `{"ip":"192.0.2.7"}`
	if a := s.post("/v1/take", `{"cost":7,"attributes":`+attributes+`}`); a.status != http.StatusOK {
		t.Fatalf("take answered %d %s", a.status, a.body)
	}
	before := s.remaining(attributes)
	f(s)
	if after := s.remaining(attributes); after != before || before != 93 {
		t.Errorf("%d are left, there were %d, want 93", after, before)
	}
}

func TestBadHTTPInput(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	const ip = `"attributes":{"ip":"192.0.2.7"}`
	unchanged(t, inputConfig, func(s *service) {
		for name, c := range map[string]struct {
			body   string
			status int
			text   string
		}{
			"empty":               {"", 400, "the body is empty"},
			"not JSON":            {"cost=1", 400, "line 1, column 1: the body is not JSON"},
			"a list":              {"[]", 400, "found a list, want an object"},
			"cut off":             {`{` + ip, 400, "the body ends too early"},
			"goes on":             {`{` + ip + `} {}`, 400, "the body goes on after its end"},
			"unknown field":       {"{\n " + ip + ",\n \"coast\":1}", 400, `line 3, column 2: unknown field \"coast\"`},
			"field of finish":     {`{` + ip + `,"permit":1}`, 400, `unknown field \"permit\"`},
			"field twice":         {`{` + ip + `,"cost":1,"cost":1}`, 400, `\"cost\" stands here twice`},
			"attribute twice":     {`{"attributes":{"ip":"192.0.2.7","ip":"192.0.2.8"}}`, 400, `\"ip\" stands here twice`},
			"attribute no string": {`{"attributes":{"ip":7}}`, 400, `the attribute \"ip\" is a number, want a string`},
			"attribute nested":    {`{"attributes":{"ip":` + strings.Repeat("[", 1000) + `}}`, 400, "a list, want a string"},
			"attribute unnamed":   {`{"attributes":{"":"x"}}`, 400, "an attribute has no name"},
			"attributes many":     {`{"attributes":{` + many(513) + `}}`, 400, "more than 512 attributes"},
			"name long":           {`{"attributes":{"` + strings.Repeat("n", 300) + `":"x"}}`, 400, "300 characters"},
			"cost negative":       {`{` + ip + `,"cost":-1}`, 400, "cost is -1"},
			"cost a fraction":     {`{` + ip + `,"cost":1.5}`, 400, "cost is 1.5"},
			"cost with exponent":  {`{` + ip + `,"cost":15e-1}`, 400, "cost is 15e-1"},
			"cost NaN":            {`{` + ip + `,"cost":NaN}`, 400, "not JSON"},
			"cost a string":       {`{` + ip + `,"cost":"1"}`, 400, "cost is a string"},
			"cost null":           {`{` + ip + `,"cost":null}`, 400, "cost is null"},
			"cost above bound":    {`{` + ip + `,"cost":4611686018427387905}`, 400, "want a whole number from 0 to 4611686018427387904"},
			"cost overflows":      {`{` + ip + `,"cost":18446744073709551617}`, 400, "want a whole number"},
			"cost of 40 digits":   {`{` + ip + `,"cost":` + strings.Repeat("9", 400) + `}`, 400, "want a whole number"},
			"invalid UTF-8":       {"{\"attributes\":{\"ip\":\"192.0.2.7\xff\"}}", 400, "column 31: the body is not valid UTF-8"},
			"10 MB":               {`{` + ip + `,"x":"` + strings.Repeat("x", 10<<20) + `"}`, 413, "larger than 512 KiB"},
		} {
			a := s.post("/v1/take", c.body)
			if a.status != c.status || !strings.Contains(a.body, c.text) || a.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s: answered %d %s %.300s, want %d with %q", name, a.status, a.header.Get("Content-Type"), a.body, c.status, c.text)
			}
		}
		// A cost that no bucket holds is refused, and takes nothing.
		if a := s.post("/v1/take", `{`+ip+`,"cost":4611686018427387904}`); a.status != 429 || a.header.Get("Retry-After") != "" || !strings.Contains(a.body, "cost_exceeds_limit") {
			t.Errorf("the largest cost: %d %s", a.status, a.body)
		}
		for _, c := range []struct {
			method, path string
			status       int
		}{{"GET", "/v1/take", 405}, {"PUT", "/v1/explain", 405}, {"POST", "/v1/nothing", 404}, {"POST", "/", 404}, {"POST", "/v1/take/", 404}} {
			if a := s.do(c.method, s.http+c.path, `{`+ip+`}`); a.status != c.status {
				t.Errorf("%s %s: %d", c.method, c.path, a.status)
			}
		}
		if a := s.do("POST", s.http+"/v1/take", `{`+ip+`}`, "Origin", "https://evil.example"); a.status != 403 {
			t.Errorf("a page of another origin: %d", a.status)
		}
		if a := s.do("POST", s.http+"/v1/take", `{`+ip+`}`, "X-Large", strings.Repeat("x", 80<<10)); a.status != 431 {
			t.Errorf("large header fields: %d", a.status)
		}
		for _, body := range []string{`{` + ip + `}`, `{` + ip + `,"permit":1.5}`, `{"permit":-1}`} {
			if a := s.post("/v1/finish", body); a.status != 400 {
				t.Errorf("finish %s: %d", body, a.status)
			}
		}
	})
}

func many(n int) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(`"a%d":"x"`, i)
	}
	return strings.Join(parts, ",")
}

func TestBadRLSInput(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	yaml := inputConfig
	good := func() *ratelimitv3.RateLimitDescriptor { return descriptor("ip=192.0.2.7") }
	multiplied := func(n uint32, unit typev3.RateLimitUnit) *ratelimitv3.RateLimitDescriptor {
		d := override(good(), 5, unit)
		d.Limit.UnitMultiplier = wrapperspb.UInt32(n)
		return d
	}
	repeated := func(n int, d *ratelimitv3.RateLimitDescriptor) *pb.RateLimitRequest {
		ds := make([]*ratelimitv3.RateLimitDescriptor, n)
		for i := range ds {
			ds[i] = d
		}
		return request("edge", 1, ds...)
	}
	wide := descriptor()
	for range 101 {
		wide.Entries = append(wide.Entries, good().Entries[0])
	}
	unchanged(t, yaml, func(s *service) {
		for name, c := range map[string]struct {
			req  *pb.RateLimitRequest
			code codes.Code
			text string
		}{
			"no domain":             {request("", 1, good()), codes.InvalidArgument, "domain must not be empty"},
			"no descriptors":        {request("edge", 1), codes.InvalidArgument, "descriptor list must not be empty"},
			"domain long":           {request(strings.Repeat("d", 300), 1, good()), codes.InvalidArgument, "300 bytes"},
			"1,001 descriptors":     {repeated(1001, good()), codes.InvalidArgument, "1001 descriptors, at most 1000"},
			"400,000 descriptors":   {repeated(400_000, good()), codes.Internal, "larger than max"},
			"entries":               {request("edge", 1, wide), codes.InvalidArgument, "101 entries"},
			"key long":              {request("edge", 1, good(), descriptor(strings.Repeat("k", 257)+"=v")), codes.InvalidArgument, "entry 0 of descriptor 1"},
			"value too long":        {request("edge", 1, descriptor("ip="+strings.Repeat("v", 4<<20))), codes.Internal, "larger than max"},
			"hits overflow":         {request("edge", 1, hits(good(), limit.MaxCount+1)), codes.InvalidArgument, "hits_addend of descriptor 0"},
			"hits max":              {request("edge", 1, good(), hits(good(), math.MaxUint64)), codes.InvalidArgument, "hits_addend of descriptor 1"},
			"override without unit": {request("edge", 1, override(good(), 5, typev3.RateLimitUnit_UNKNOWN)), codes.InvalidArgument, "has the unit UNKNOWN, set unit"},
			"override odd unit":     {request("edge", 1, override(good(), 5, 99)), codes.InvalidArgument, "has the unit 99"},
			"override times 0":      {request("edge", 1, multiplied(0, typev3.RateLimitUnit_SECOND)), codes.InvalidArgument, "unit_multiplier 0"},
			"override overflows":    {request("edge", 1, multiplied(math.MaxUint32, typev3.RateLimitUnit_YEAR)), codes.InvalidArgument, "unit_multiplier"},
		} {
			_, err := s.rls.ShouldRateLimit(context.Background(), c.req)
			if st := status.Convert(err); st.Code() != c.code || !strings.Contains(st.Message(), c.text) {
				t.Errorf("%s: %v, want %v with %q", name, err, c.code, c.text)
			}
		}
		// The codec sends bytes as they are.
		var out pb.RateLimitResponse
		err := s.conn.Invoke(context.Background(), pb.RateLimitService_ShouldRateLimit_FullMethodName, bytes.Repeat([]byte{0xff}, 100), &out, forceRaw)
		if status.Code(err) != codes.Internal {
			t.Errorf("bytes that are no message: %v", err)
		}
	})
}

// The sum of costs on one bucket is past what an integer holds.
func TestSumOfCostsOverflows(t *testing.T) {
	for name, yaml := range map[string]string{
		"envoy":  "domain: edge\ndescriptors:\n  - {key: ip, rate_limit: {unit: year, requests_per_unit: 100}}\n",
		"native": inputConfig,
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, yaml)
			var ds []*ratelimitv3.RateLimitDescriptor
			for range 5 {
				ds = append(ds, hits(descriptor("ip=192.0.2.7"), limit.MaxCount))
			}
			for range 3 {
				resp := s.should(request("edge", 1, ds...))
				if resp.OverallCode != pb.RateLimitResponse_OVER_LIMIT {
					t.Fatalf("answered %v", resp)
				}
			}
			resp := s.should(request("edge", 1, descriptor("ip=192.0.2.7")))
			// Envoy's semantics count refused hits, stint's do not.
			want := map[string]string{"envoy": "OVER: OVER 0/100", "native": "OK: OK 99/100"}[name]
			if got := short(resp); got != want {
				t.Fatalf("got %s, want %s", got, want)
			}
		})
	}
}

func TestJSONEndpoint(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	s := start(t, "domain: edge\ndescriptors:\n  - {key: k, rate_limit: {unit: year, requests_per_unit: 2}}\n")
	const body = `{"domain":"edge","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`
	reset := func(text string) string {
		i := strings.Index(text, `"durationUntilReset":"`)
		if i < 0 {
			return text
		}
		j := strings.Index(text[i:], `s"`)
		return text[:i] + `"durationUntilReset":"*` + text[i+j:]
	}
	for i, c := range []struct {
		method, body string
		status       int
		want         string
	}{
		{"POST", "", 400, "Bad Request\n"},
		{"POST", "{", 400, "Bad Request\n"},
		{"POST", `{"domain":"edge","unknown":1}`, 400, "Bad Request\n"},
		{"POST", `{"domain":"","descriptors":[]}`, 400, "Bad Request\n"},
		{"POST", `{"domain":"edge","descriptors":[{"limit":{"requestsPerUnit":3}}]}`, 400, "Bad Request\n"},
		{"POST", strings.Repeat(" ", 10<<20), 413, "Request Entity Too Large\n"},
		{"POST", body, 200, `{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":2,"unit":"YEAR"},"limitRemaining":1,"durationUntilReset":"*s"}]}`},
		{"GET", body, 200, `{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":2,"unit":"YEAR"},"durationUntilReset":"*s"}]}`},
		{"POST", strings.Replace(body, `}]}]`, `}],"hitsAddend":"0"}]`, 1), 200, `{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":2,"unit":"YEAR"},"durationUntilReset":"*s"}]}`},
		{"PUT", body, 429, ``},
	} {
		a := s.do(c.method, s.http+"/json", c.body)
		if a.status != c.status || c.want != "" && reset(a.body) != c.want {
			t.Errorf("request %d: answered %d %s, want %d %s", i+1, a.status, a.body, c.status, c.want)
		}
		if a.status == 429 && (!strings.HasPrefix(a.body, `{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT"`) || a.header.Get("Retry-After") == "" || a.header.Get("Content-Type") != "application/json") {
			t.Errorf("refused with %s %v", a.body, a.header)
		}
		if a.status == 400 && a.header.Get("X-Stint-Error") == "" {
			t.Errorf("request %d: nothing says what is wrong", i+1)
		}
	}
}
