package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/etcdtest"
	"github.com/stint-io/stint/internal/redistest"
)

const (
	rowLimits = "limits: [{name: month, key: [customer], algorithm: fixed_window, rate: 4000000000000/month}]\n"
	rowKeys   = 16
	rowTakers = 4  // of each service
	rowAtOnce = 32 // requests that a taker sends before it reads the answers
	mostCost  = 3
)

// TestUsageEqualsAdmitted is the row of four nodes: services that are killed with kill -9 at random moments, and
// whose callers count what they were told. STINT_USAGE_TAKES=10000000 runs it whole.
func TestUsageEqualsAdmitted(t *testing.T) {
	t.Parallel()
	takes, kills := 10_000, 1
	if text := os.Getenv("STINT_USAGE_TAKES"); text != "" {
		var err error
		if takes, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		kills = 30
	}
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		url := redistest.Start(t).URL()
		fourNodes(t, takes, kills, func(int) []string { return []string{"--store", url} })
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		url := "etcd://" + etcdtest.Start(t).Addr() + "/usage"
		fourNodes(t, takes, kills, func(i int) []string { return []string{"--cluster", url, "--node", fmt.Sprint("n", i)} })
	})
}

// told is what callers were told, by customer: what was admitted, and what they sent and never heard of.
type told struct {
	requests            atomic.Int64
	least               int64       // that have to be answered
	starting            atomic.Bool // a service is being started again
	killed              atomic.Bool // no service is killed any more
	admitted, uncertain [rowKeys]atomic.Int64
}

// caller asks the service at an address that changes when it is started again.
type caller struct {
	address atomic.Pointer[string]
	told    *told
}

func (t *told) enough() bool { return t.killed.Load() && t.requests.Load() >= t.least }

// run takes until enough requests were answered.
func (c *caller) run() {
	for !c.told.enough() {
		conn, err := net.Dial("tcp", *c.address.Load())
		if err != nil {
			<-time.After(20 * time.Millisecond) // it is being started again
			continue
		}
		in := bufio.NewReader(conn)
		for !c.told.enough() && c.some(conn, in) {
			if c.told.starting.Load() {
				<-time.After(20 * time.Millisecond) // a service starts slowly beside callers who never pause
			}
		}
		_ = conn.Close()
	}
}

// some sends some requests and reads their answers, and reports whether the connection is good.
func (c *caller) some(conn net.Conn, in *bufio.Reader) bool {
	var keys [rowAtOnce]int
	var costs [rowAtOnce]int64
	var out bytes.Buffer
	for i := range keys {
		keys[i], costs[i] = rand.IntN(rowKeys), 1+rand.Int64N(mostCost)
		body := fmt.Sprintf(`{"attributes":{"customer":"%d"},"cost":%d}`, keys[i], costs[i])
		fmt.Fprintf(&out, "POST /v1/take HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	_, err := conn.Write(out.Bytes())
	for i := range keys {
		var code string
		if err == nil {
			code, err = readAnswer(in)
		}
		switch {
		case err != nil:
			c.told.uncertain[keys[i]].Add(costs[i])
		case code == "200":
			c.told.admitted[keys[i]].Add(costs[i])
			c.told.requests.Add(1)
		}
	}
	return err == nil
}

// readAnswer reads one answer and returns its status.
func readAnswer(in *bufio.Reader) (code string, err error) {
	length := -1
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return "", err
		}
		text := bytes.TrimSpace(line)
		if code == "" {
			if len(text) < 12 {
				return "", io.ErrUnexpectedEOF
			}
			code = string(text[9:12])
		} else if n, ok := bytes.CutPrefix(text, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(n)); err != nil {
				return "", err
			}
		} else if len(text) == 0 {
			break
		}
	}
	if length < 0 {
		return "", io.ErrUnexpectedEOF
	}
	_, err = in.Discard(length)
	return code, err
}

func fourNodes(t *testing.T, takes, kills int, more func(node int) []string) {
	limits := file(t, "stint.yaml", rowLimits)
	all := told{least: int64(takes)}
	nodes, callers := make([]*process, 4), make([]*caller, 4)
	folders := make([]string, 4)
	begin := func(i int) {
		nodes[i] = serveProcess(t, nil, append([]string{"--config", limits, "--state-dir", folders[i]}, more(i)...)...)
		address := strings.TrimPrefix(nodes[i].http, "http://")
		callers[i].address.Store(&address)
	}
	for i := range nodes {
		callers[i], folders[i] = &caller{told: &all}, t.TempDir()
		begin(i)
	}
	var taking sync.WaitGroup
	for _, c := range callers {
		for range rowTakers {
			taking.Go(func() { c.run() })
		}
	}
	apart := int64(takes / (kills + 1)) // requests, on average
	for range kills {
		i := rand.IntN(len(nodes))
		next := all.requests.Load() + apart/2 + rand.N(apart)
		for begun := time.Now(); all.requests.Load() < next; <-time.After(time.Millisecond) {
			if time.Since(begun) > time.Minute {
				t.Fatalf("%d requests were answered, want %d", all.requests.Load(), next)
			}
		}
		if err := nodes[i].cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = nodes[i].cmd.Wait() // it was killed
		all.starting.Store(true)
		begin(i)
		all.starting.Store(false)
	}
	all.killed.Store(true)
	taking.Wait()
	var admitted, uncertain int64
	for k := range rowKeys {
		admitted += all.admitted[k].Load()
		uncertain += all.uncertain[k].Load()
	}
	for i, sums := range usageOfAll(t, nodes, &all) {
		var reported int64
		for k, n := range sums {
			reported += n
			if least := all.admitted[k].Load(); n < least || n > least+all.uncertain[k].Load() {
				t.Errorf("node %d: customer %d: %d admitted, %d not known, %d reported", i, k, least, all.uncertain[k].Load(), n)
			}
		}
		t.Logf("node %d: %d requests, %d kills: %d acknowledged, %d reported: %d more, where %d were in flight when a process was killed", i, all.requests.Load(), kills, admitted, reported, reported-admitted, uncertain)
	}
}

// usageOfAll returns what each node says that all have admitted, once they say the same and it is enough.
func usageOfAll(t *testing.T, nodes []*process, all *told) [][rowKeys]int64 {
	t.Helper()
	for begun := time.Now(); ; <-time.After(100 * time.Millisecond) {
		sums, good := make([][rowKeys]int64, len(nodes)), true
		for i, n := range nodes {
			var whole bool
			sums[i], whole = usageAt(t, n.http)
			good = good && whole && sums[i] == sums[0]
			for k := range rowKeys {
				good = good && sums[i][k] >= all.admitted[k].Load()
			}
		}
		if good || time.Since(begun) > 30*time.Second {
			return sums
		}
	}
}

// usageAt returns what a service says that all have admitted, and whether no member is missing.
func usageAt(t *testing.T, http1 string) (sums [rowKeys]int64, whole bool) {
	t.Helper()
	resp, err := http.Get(http1 + "/v1/usage?by=total&format=jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for d := json.NewDecoder(resp.Body); ; {
		var row struct {
			Key        map[string]string
			Used       int64
			Incomplete []string
		}
		if err := d.Decode(&row); err == io.EOF {
			return sums, true
		} else if err != nil {
			t.Fatal(resp.Status, err)
		}
		if row.Incomplete != nil {
			return sums, false
		}
		k, err := strconv.Atoi(row.Key["customer"])
		if err != nil {
			t.Fatal(err)
		}
		sums[k] += row.Used
	}
}
