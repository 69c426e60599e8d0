//go:build unix

package usage_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/internal/observe"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/internal/usage"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

const (
	nodeEnv  = "STINT_USAGE_NODE"
	rowKeys  = 16
	takers   = 4 // of a node
	mostCost = 3
	apart    = 300 * time.Millisecond // between two kills
)

// nodeConfig is what a node is told.
type nodeConfig struct {
	Folder, Acks string
	Redis        string
	Takes        uint64
	Burst        int // how many a taker takes, and then rests for a millisecond
}

func TestMain(m *testing.M) {
	if text := os.Getenv(nodeEnv); text != "" {
		var c nodeConfig
		err := json.Unmarshal([]byte(text), &c)
		if err == nil {
			err = runNode(&c)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "node:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// acks are what a node's callers were told, in a file that survives its kill: a number of requests, and what was
// admitted by key.
type acks struct {
	takes atomic.Uint64
	key   [rowKeys]atomic.Uint64
}

func mapAcks(name string) (*acks, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		return nil, err
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*acks)(unsafe.Pointer(&b[0])), nil
}

// redisMarks is what of store.Records a node needs, in a hash of Redis.
type redisMarks struct {
	store.Records
	client rueidis.Client
}

var raise = rueidis.NewLuaScript(`
for i = 1, #ARGV, 2 do
  local was = redis.call('HGET', KEYS[1], ARGV[i])
  if not was or was < ARGV[i+1] then redis.call('HSET', KEYS[1], ARGV[i], ARGV[i+1]) end
end`)

func (r redisMarks) Raise(ctx context.Context, table string, marks []store.Mark, _ time.Duration) error {
	args := make([]string, 0, 2*len(marks))
	for _, m := range marks {
		args = append(args, m.Key, fmt.Sprintf("%020d", m.N)) // numbers of Lua have 53 bits
	}
	err := raise.Exec(ctx, r.client, []string{table}, args).Error()
	if err != nil && !rueidis.IsRedisNil(err) {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	return nil
}

// runNode takes until its callers were told of as many requests as it shall take, reports, says so, and serves what it
// knows until its input ends.
func runNode(c *nodeConfig) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	acked, err := mapAcks(c.Acks)
	if err != nil {
		return err
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{c.Redis}, DisableCache: true})
	if err != nil {
		return err
	}
	rec := redisMarks{client: client}
	meter, err := usage.New(usage.Options{Records: rec, Folder: c.Folder, Every: 50 * time.Millisecond})
	if err != nil {
		return err
	}
	st := memory.New(memory.Options{})
	counted := usage.NewObserver(meter)
	counters, err := st.Bind(store.Spec{ID: "id", Policy: limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: limit.MaxCount, Period: time.Hour}}})
	if err != nil {
		return err
	}
	counted.Watch([]usage.Limit{{Name: "month", IDs: []string{"id"}, Subject: func(key []byte) []limit.Attribute {
		return []limit.Attribute{{Name: "customer", Value: string(key)}}
	}}})
	reporting, done := context.WithCancel(ctx)
	var reported, taking sync.WaitGroup
	reported.Go(func() { meter.Run(reporting) })
	for range takers {
		taking.Go(func() {
			for i := 1; acked.takes.Load() < c.Takes; i++ {
				if i%c.Burst == 0 {
					<-time.After(time.Millisecond)
				}
				k, cost := rand.IntN(rowKeys), 1+rand.Int64N(mostCost)
				charge := []store.Charge{{Counters: counters, Key: strconv.AppendInt(nil, int64(k), 10), Cost: cost}}
				if ok, err := st.Take(ctx, charge); err == nil && ok {
					counted.Observe(observe.Event{Allowed: ok, Charges: charge})
					acked.key[k].Add(uint64(cost)) // the caller is told
					acked.takes.Add(1)
				}
			}
		})
	}
	taking.Wait()
	done()
	reported.Wait()
	for meter.Report(ctx) != nil {
		<-time.After(10 * time.Millisecond)
	}
	fmt.Println("done")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

func totalsOf(ctx context.Context, from store.Records) ([rowKeys]uint64, error) {
	var totals [rowKeys]uint64
	_, err := usage.History(ctx, from, nil, usage.Query{}, func(r *usage.Row) error {
		k, err := strconv.Atoi(r.Key[0].Value)
		if err == nil {
			totals[k] += r.Used()
		}
		return err
	})
	return totals, err
}

// node is a process that is killed and started again until it is done.
type node struct {
	t      *testing.T
	config nodeConfig
	acks   *acks
	cmd    *exec.Cmd
	done   chan bool // true = it has reported all, false = it has ended
	stdin  io.Closer
}

func (n *node) start() {
	n.t.Helper()
	text, err := json.Marshal(n.config)
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), nodeEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if n.stdin, err = cmd.StdinPipe(); err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	done := make(chan bool, 2)
	n.cmd, n.done = cmd, done
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		done <- line == "done\n"
	}()
}

func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
}

// TestTakesEqualReports is four meters that are killed at random moments, at full speed: STINT_USAGE_TAKES=10000000
// runs it whole. cmd/stint has the same with services.
func TestTakesEqualReports(t *testing.T) {
	takes, kills := 200_000, 6
	if text := os.Getenv("STINT_USAGE_TAKES"); text != "" {
		var err error
		if takes, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		kills = 60
	}
	nodes := make([]*node, 4)
	redis := redistest.Start(t).Addr()
	for i := range nodes {
		folder := t.TempDir()
		n := &node{t: t, config: nodeConfig{
			Folder: filepath.Join(folder, "usage"), Acks: filepath.Join(folder, "acks"), Redis: redis,
			Takes: uint64(takes / len(nodes)),
			Burst: max(1, takes/len(nodes)/takers/kills/int(apart/time.Millisecond)),
		}}
		var err error
		if n.acks, err = mapAcks(n.config.Acks); err != nil {
			t.Fatal(err)
		}
		nodes[i] = n
		n.start()
		defer func() { n.kill() }()
	}
	killed := 0
	for range kills {
		n := nodes[rand.IntN(len(nodes))]
		<-time.After(apart/2 + rand.N(apart))
		n.kill()
		killed++
		n.start()
	}
	for i, n := range nodes {
		select {
		case ok := <-n.done:
			if !ok {
				t.Fatal("node", i, "ended")
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("node", i, "is not done")
		}
	}
	var admitted [rowKeys]uint64
	var sum, requests uint64
	for _, n := range nodes {
		requests += n.acks.takes.Load()
		for k := range admitted {
			admitted[k] += n.acks.key[k].Load()
			sum += n.acks.key[k].Load()
		}
	}
	totals := seen(t, redis)
	var reported uint64
	for k := range admitted {
		reported += totals[k]
		if totals[k] < admitted[k] || totals[k] > admitted[k]+uint64(killed*takers*mostCost) {
			t.Errorf("customer %d: %d admitted, %d reported", k, admitted[k], totals[k])
		}
	}
	t.Logf("%d requests, %d kills: %d acknowledged, %d reported: %d more, at most %d were in flight when a process was killed", requests, killed, sum, reported, int64(reported-sum), killed*takers*mostCost)
	if reported < sum || reported > sum+uint64(killed*takers*mostCost) {
		t.Errorf("%d acknowledged, %d reported", sum, reported)
	}
}

// seen returns the totals as Redis has them.
func seen(t *testing.T, redis string) [rowKeys]uint64 {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redis}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	found, err := client.Do(t.Context(), client.B().Hgetall().Key(usage.Table).Build()).AsStrMap()
	if err != nil {
		t.Fatal(err)
	}
	rec := records.New(nil, 0)
	for key, text := range found {
		n, err := strconv.ParseUint(text, 10, 64)
		if err == nil {
			err = rec.Raise(t.Context(), usage.Table, []store.Mark{{Key: key, N: n}}, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	totals, err := totalsOf(t.Context(), rec)
	if err != nil {
		t.Fatal(err)
	}
	return totals
}
