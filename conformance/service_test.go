package conformance_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint"
	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// toMap returns attributes as a map, which has each name once.
func toMap(list [][2]string) map[string]string {
	m := map[string]string{}
	for _, a := range list {
		if _, twice := m[a[0]]; !twice {
			m[a[0]] = a[1]
		}
	}
	return m
}

const (
	jsonIsUTF8 = "JSON texts are UTF-8"
	mapHasOne  = "attributes are a map: a name occurs once"
)

// asGiven is the reason why ways whose callers give attributes do not read a path in several ways.
var asGiven = each("the caller gives the path as an attribute, which is compared as it is", encoded)

var takeLacks = with(asGiven, each(jsonIsUTF8, bytes), each(mapHasOne, twice))

// takeAsker asks POST /v1/take, /v1/finish, /v1/reserve and so on.
type takeAsker struct {
	way, scenario string
	base          string
}

func (a *takeAsker) in(sc string) { a.scenario = sc }

func (a *takeAsker) post(path string, body any) (*http.Response, []byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, nil, err
	}
	res, err := http.Post(a.base+path, "application/json", strings.NewReader(string(text)))
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	return res, answer, err
}

func (a *takeAsker) ask(t *testing.T, q query) reply {
	attributes := toMap(q.attributes(a.way, a.scenario))
	if q.reserve {
		res, text, err := a.post("/v1/reserve", map[string]any{"attributes": attributes, "cost": q.tokens(), "ttl": "60s"})
		if err != nil {
			return reply{err: err}
		}
		r := readHTTP(res, text)
		var reserved struct {
			ID string `json:"id"`
		}
		_ = json.Unmarshal(text, &reserved)
		r.id = reserved.ID
		return r
	}
	res, text, err := a.post("/v1/take", map[string]any{"attributes": attributes, "cost": q.tokens()})
	if err != nil {
		return reply{err: err}
	}
	r := readHTTP(res, text)
	var taken struct {
		Permit uint64
		Tags   []struct{ Name, Value string }
		Action struct {
			Location    string
			Body        string
			ContentType string `json:"content_type"`
			Header      []struct{ Name, Value string }
		}
	}
	_ = json.Unmarshal(text, &taken)
	if a := taken.Action; a.Body != "" {
		r.body, r.contentType = a.Body, a.ContentType
	}
	for _, f := range taken.Action.Header {
		r.field = [2]string{f.Name, f.Value}
	}
	if r.allowed {
		for _, tag := range taken.Tags {
			r.tag = [2]string{tag.Name, tag.Value}
		}
		r.permit = strconv.FormatUint(taken.Permit, 10)
	}
	return r
}

func (a *takeAsker) settle(t *testing.T, do action, q query, r reply) {
	var res *http.Response
	var err error
	switch do {
	case finish:
		permit, _ := strconv.ParseUint(r.permit, 10, 64)
		res, _, err = a.post("/v1/finish", map[string]any{"attributes": toMap(q.attributes(a.way, a.scenario)), "permit": permit})
	case release:
		res, _, err = a.post("/v1/release", map[string]any{"id": r.id})
	case commit:
		res, _, err = a.post("/v1/commit", map[string]any{"id": r.id, "actual": 1})
	}
	if err != nil || res.StatusCode >= 300 {
		t.Errorf("%s: settling: %v %v", a.way, res, err)
	}
}

// libraryAsker is a stint.Limiter in this process.
type libraryAsker struct {
	way, scenario string
	limiter       *stint.Limiter
}

func (a *libraryAsker) in(sc string) { a.scenario = sc }

func (a *libraryAsker) reload(t *testing.T) {
	if err := a.limiter.Reload(); err != nil {
		t.Error(err)
	}
}

func (a *libraryAsker) request(q query) limit.Request {
	req := limit.Request{Cost: q.tokens(), Peek: q.peek}
	for _, at := range q.attributes(a.way, a.scenario) {
		req.Attributes = append(req.Attributes, limit.Attribute{Name: at[0], Value: at[1]})
	}
	return req
}

func (a *libraryAsker) ask(t *testing.T, q query) reply {
	if q.reserve {
		res, d, err := a.limiter.Reserve(t.Context(), a.request(q), 60_000_000_000)
		r := readDecision(d, err)
		r.id = res.ID
		return r
	}
	return readDecision(a.limiter.Take(t.Context(), a.request(q)))
}

func (a *libraryAsker) settle(t *testing.T, do action, q query, r reply) {
	var err error
	switch do {
	case finish:
		permit, _ := strconv.ParseUint(r.permit, 10, 64)
		err = a.limiter.Finish(t.Context(), a.request(q), permit)
	case release:
		_, err = a.limiter.Release(t.Context(), r.id)
	case commit:
		_, err = a.limiter.Commit(t.Context(), r.id, 1)
	}
	if err != nil {
		t.Errorf("%s: settling: %v", a.way, err)
	}
}

// readDecision reads what a limit.Taker says.
func readDecision(d limit.Decision, err error) reply {
	r := reply{retry: -1, err: err}
	r.allowed, r.status, r.remaining = d.Allowed, d.Status, -1
	r.permit = strconv.FormatUint(d.Permit, 10)
	for _, tag := range d.Tags {
		r.tag = [2]string{tag.Name, tag.Value}
	}
	if d.Action != nil {
		r.location = d.Action.Location
		r.body, r.contentType = d.Action.Body, d.Action.ContentType
		for _, f := range d.Action.Header {
			r.field = [2]string{f.Name, f.Value}
		}
	}
	for _, res := range d.Results {
		if res.Soft {
			r.warning = res.Limit
		}
	}
	if tight := d.Tightest(); tight != nil {
		r.remaining, r.limit = tight.Remaining, tight.Limit
	}
	if refusal := d.Refused(); refusal != nil && !d.Allowed {
		r.limit, r.reason = refusal.Limit, refusal.Reason.String()
		if wait := d.RetryAfter(); wait < limit.Never {
			r.retry = wait.Seconds()
		}
	}
	return r
}

// scriptAsker is a client in another language: a program that reads queries as lines of JSON and
// writes replies.
type scriptAsker struct {
	way, scenario string
	in_           io.Writer
	out           *bufio.Scanner
}

func (a *scriptAsker) in(sc string) { a.scenario = sc }

type scriptReply struct {
	Allowed     bool     `json:"allowed"`
	Status      int      `json:"status"`
	Limit       string   `json:"limit"`
	Reason      string   `json:"reason"`
	Remaining   int64    `json:"remaining"`
	Retry       *float64 `json:"retry"`
	Body        string   `json:"body"`
	ContentType string   `json:"content_type"`
	Field       string   `json:"field"`
	Location    string   `json:"location"`
	Tag         string   `json:"tag"`
	Warning     string   `json:"warning"`
	Permit      uint64   `json:"permit"`
	ID          string   `json:"id"`
	Error       string   `json:"error"`
}

func (a *scriptAsker) call(message map[string]any) (reply, error) {
	line, err := json.Marshal(message)
	if err != nil {
		return reply{}, err
	}
	if _, err := a.in_.Write(append(line, '\n')); err != nil {
		return reply{}, err
	}
	if !a.out.Scan() {
		return reply{}, errors.New("the program has ended")
	}
	var got scriptReply
	if err := json.Unmarshal(a.out.Bytes(), &got); err != nil {
		return reply{}, fmt.Errorf("%s: %w", a.out.Text(), err)
	}
	r := reply{retry: -1, permit: strconv.FormatUint(got.Permit, 10), id: got.ID}
	r.allowed, r.status, r.limit, r.reason, r.remaining = got.Allowed, got.Status, got.Limit, got.Reason, got.Remaining
	r.body, r.contentType, r.location, r.warning = got.Body, got.ContentType, got.Location, got.Warning
	r.field, r.tag = [2]string{"X-Reason", got.Field}, [2]string{"X-RateLimit-Degraded", got.Tag}
	if got.Retry != nil {
		r.retry = *got.Retry
	}
	if got.Error != "" {
		r.err = errors.New(got.Error)
	}
	return r, nil
}

func (a *scriptAsker) ask(t *testing.T, q query) reply {
	do := "take"
	if q.reserve {
		do = "reserve"
	}
	r, err := a.call(map[string]any{"do": do, "attributes": toMap(q.attributes(a.way, a.scenario)), "cost": q.tokens()})
	if err != nil {
		t.Fatalf("%s: %v", a.way, err)
	}
	return r
}

func (a *scriptAsker) settle(t *testing.T, do action, q query, r reply) {
	permit, _ := strconv.ParseUint(r.permit, 10, 64)
	name := map[action]string{finish: "finish", release: "release", commit: "commit"}[do]
	got, err := a.call(map[string]any{"do": name, "attributes": toMap(q.attributes(a.way, a.scenario)), "permit": permit, "id": r.id})
	if err != nil || got.err != nil {
		t.Errorf("%s: settling: %v %v", a.way, err, got.err)
	}
}

// openScript starts an interpreter with a program of testdata.
func openScript(name string, environ []string, command ...string) func(*testing.T, *site) asker {
	return func(t *testing.T, s *site) asker {
		cmd := exec.Command(command[0], append(command[1:], "http://"+s.service.HTTP)...)
		cmd.Env = append(os.Environ(), environ...)
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatalf("%v (./scripts/test installs what is missing)", err)
		}
		t.Cleanup(func() {
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		return &scriptAsker{way: name, in_: in, out: bufio.NewScanner(out)}
	}
}

// respAsker is a client of Redis.
type respAsker struct {
	way, scenario string
	client        rueidis.Client
}

func (a *respAsker) in(sc string) { a.scenario = sc }

func (a *respAsker) do(words ...string) (map[string]rueidis.RedisMessage, error) {
	message := a.client.Do(context.Background(), a.client.B().Arbitrary(words...).Build())
	if err := message.Error(); err != nil {
		return nil, err
	}
	answer, err := message.ToMessage()
	if err != nil || !answer.IsMap() {
		return nil, err
	}
	return answer.AsMap()
}

func (a *respAsker) ask(t *testing.T, q query) reply {
	cost := strconv.FormatInt(q.tokens(), 10)
	words := []string{"RL.TAKE", cost}
	switch {
	case q.peek:
		words = []string{"RL.PEEK", "1"}
	case q.reserve:
		words = []string{"RL.RESERVE", cost, "60000"}
	}
	for _, at := range q.attributes(a.way, a.scenario) {
		words = append(words, at[0], at[1])
	}
	m, err := a.do(words...)
	if err != nil {
		return reply{err: err}
	}
	text := func(name string) string { v := m[name]; s, _ := v.ToString(); return s }
	number := func(name string) int64 { v := m[name]; n, _ := v.AsInt64(); return n }
	r := reply{retry: -1, permit: "0", id: text("id")}
	r.allowed, r.limit, r.reason, r.remaining = number("allowed") == 1, text("limit"), text("reason"), -1
	if left, ok := m["remaining"]; ok && !left.IsNil() {
		r.remaining = number("remaining")
	}
	if ms := number("retry_after_ms"); ms >= 0 {
		r.retry = float64(ms) / 1000
	}
	if permit, ok := m["permit"]; ok && !permit.IsNil() {
		r.permit = strconv.FormatInt(number("permit"), 10)
	}
	r.status, r.location, r.body, r.contentType = int(number("status")), text("location"), text("body"), text("content_type")
	list := func(name string) []string { v := m[name]; all, _ := v.AsStrSlice(); return all }
	if f := list("header"); len(f) == 2 {
		r.field = [2]string(f)
	}
	if f := list("tags"); len(f) == 2 {
		r.tag = [2]string(f)
	}
	r.warning = strings.Join(list("warning"), ",")
	if r.remaining == math.MaxInt64 {
		r.remaining = -1 // no limit applies
	}
	return r
}

func (a *respAsker) settle(t *testing.T, do action, q query, r reply) {
	var words []string
	switch do {
	case finish:
		words = []string{"RL.FINISH", r.permit}
		for _, at := range q.attributes(a.way, a.scenario) {
			words = append(words, at[0], at[1])
		}
	case release:
		words = []string{"RL.RELEASE", r.id}
	case commit:
		words = []string{"RL.COMMIT", r.id, "1"}
	}
	if _, err := a.do(words...); err != nil {
		t.Errorf("%s: settling: %v", a.way, err)
	}
}

// takerAsker is a limit.Taker that a program makes by hand, of one policy: in its memory, or on leases.
type takerAsker struct {
	t        *testing.T
	way      string
	scenario string
	takers   map[string]limit.Taker
	make     func(scenario string) (limit.Taker, error)
}

func (a *takerAsker) in(sc string) {
	if a.scenario = sc; a.takers[sc] == nil {
		taker, err := a.make(sc)
		if err != nil {
			a.t.Fatal(err)
		}
		a.takers[sc] = taker
	}
}

func (a *takerAsker) ask(t *testing.T, q query) reply {
	req := limit.Request{Cost: q.tokens(), Peek: q.peek}
	for _, at := range q.attributes(a.way, a.scenario) {
		req.Attributes = append(req.Attributes, limit.Attribute{Name: at[0], Value: at[1]})
	}
	return readDecision(a.takers[a.scenario].Take(t.Context(), req))
}

const keyOfAll = "header:x-api-key"

func openTaker(t *testing.T, s *site) asker {
	a := &takerAsker{t: t, way: "Go Take", takers: map[string]limit.Taker{}}
	if s.sharing == "leases" {
		c, err := client.New(client.Options{Address: s.service.GRPC})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			<-done
		})
		a.make = func(sc string) (limit.Taker, error) { return c.Keyed(sc, []string{keyOfAll}, client.KeyedOptions{}) }
		return a
	}
	set, err := rules.Load(s.config)
	if err != nil {
		t.Fatal(err)
	}
	a.make = func(sc string) (limit.Taker, error) {
		for _, v := range set.Variants() {
			if v.ID != sc {
				continue
			}
			k, err := memory.NewKeyed(v.Policy, memory.Options{})
			if err != nil {
				return nil, err
			}
			return k.Taker(sc, keyOfAll), nil
		}
		return nil, fmt.Errorf("no limit %s", sc)
	}
	return a
}

// serviceWays are the ways of programs that ask a service, or decide themselves.
func serviceWays() []way {
	return []way{
		{
			name: "Go Take",
			only: []string{"allow", "refuse", "cost", "cost-above-burst", "peek", "long-value", "not-utf8"},
			lacks: with(
				each("a Taker made by hand says what its limit says; the answer is the program's", status),
				each("on a lease what remains is what the lease has at the moment", remaining),
			),
			otherwise: "a Taker made by hand, memory.Keyed or client.Keyed, has one policy: match, when, on_exceed, overrides " +
				"and plans are of limits files",
			notShared: map[string]string{
				"file":  "memory.Keyed keeps its counters in memory",
				"redis": "a program that shares counters in Redis has stint.Limiter",
			},
			open: openTaker,
		},
		{
			name:  "stint.Limiter",
			lacks: asGiven,
			notShared: map[string]string{
				"file":   "stint.Open keeps counters in memory or in Redis; only the service keeps them in a file",
				"leases": "stint.Open has no coordinator; client.Keyed spends leases in a program",
			},
			open: func(t *testing.T, s *site) asker {
				limiter, err := stint.Open(s.config)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = limiter.Close() })
				return &libraryAsker{way: "stint.Limiter", limiter: limiter}
			},
		},
		{
			name:  "POST /v1/take",
			lacks: takeLacks,
			open: func(t *testing.T, s *site) asker {
				return &takeAsker{way: "POST /v1/take", base: "http://" + s.service.HTTP}
			},
		},
		{
			name:  "Python client",
			lacks: takeLacks,
			open:  openScript("Python client", []string{"PYTHONPATH=../clients/python/src"}, "python3", "testdata/ask.py"),
		},
		{
			name:  "TypeScript client",
			lacks: takeLacks,
			open:  openScript("TypeScript client", nil, "node", "testdata/ask.mjs"),
		},
		{
			name:   "Redis protocol",
			lacks:  asGiven,
			strict: true,
			open: func(t *testing.T, s *site) asker {
				c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.resp}, DisableCache: true, ForceSingleClient: true})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(c.Close)
				return &respAsker{way: "Redis protocol", client: c}
			},
		},
	}
}
