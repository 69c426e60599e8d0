package server

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store/memory"
)

// A million customers in a file, each with a plan and a quota of the month: how long a start takes, what a change of the file
// costs, and what a customer takes in memory once it has used something. STINT_MANY_CUSTOMERS says how many; a few thousand
// without it.
//
//	STINT_MANY_CUSTOMERS=1000000 go test ./server -run ManyCustomers -v
func TestManyCustomers(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	customers := 5000
	if text := os.Getenv("STINT_MANY_CUSTOMERS"); text != "" {
		if _, err := fmt.Sscan(text, &customers); err != nil {
			t.Fatal(err)
		}
	}
	name := func(i int) string { return fmt.Sprintf("customer-%07d", i) }
	csv := filepath.Join(t.TempDir(), "customers.csv")
	file, err := os.Create(csv)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(file)
	for i := range customers {
		fmt.Fprintf(w, "%s,%s\n", name(i), []string{"pro", "gold"}[i%2])
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	file.Close()
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	yaml := `
plans:
  - name: free
    limits: [{name: messages, rate: 1/month, algorithm: fixed_window}]
  - name: pro
    limits: [{name: messages, rate: 100/month, algorithm: fixed_window}]
  - name: gold
    limits: [{name: messages, rate: 1000/month, algorithm: fixed_window}]
customers: {by: customer, default: free, from: ` + csv + "}\n"
	empty := counting(t, Options{StateDir: t.TempDir(), Sync: SyncNever}, strings.Replace(yaml, ", from: "+csv, "", 1))
	defer func() { _ = empty.close(true) }()
	before := heap()
	begun := time.Now()
	s := counting(t, Options{StateDir: t.TempDir(), Sync: SyncNever}, yaml)
	took := time.Since(begun)
	defer func() { _ = s.close(true) }()
	known := heap()
	spend := func(e *engine.Engine) uint64 {
		for i := range customers {
			d, err := e.Take(t.Context(), limit.Request{Attributes: []limit.Attribute{{Name: "customer", Value: name(i)}}, Cost: 1})
			if err != nil || !d.Allowed || d.Results[0].Quota != []int64{100, 1000}[i%2] {
				t.Fatal(i, d, err)
			}
		}
		return heap()
	}
	// First the counters alone, then counters with the usage that a server counts beside them.
	store := memory.New(memory.Options{})
	alone, err := engine.New(store, s.engine.Set(), engine.Options{Derive: s.config.deriver})
	if err != nil {
		t.Fatal(err)
	}
	counted := spend(alone)
	used := spend(s.engine)
	runtime.KeepAlive(store)
	begun = time.Now()
	if err := s.config.reload(); err != nil {
		t.Fatal(err)
	}
	again := time.Since(begun)
	per := func(from, to uint64) float64 { return float64(int64(to)-int64(from)) / float64(customers) }
	directory, counter := per(before, known), per(known, counted)
	t.Logf("%d customers: a start takes %v, reading the file again %v; bytes for each: %.1f in the directory, %.1f for the counter, and %.1f for the usage of the hour",
		customers, took.Round(time.Millisecond), again.Round(time.Millisecond), directory, counter, per(counted, used)-counter)
	if customers >= 1_000_000 && (took > 5*time.Second || directory+counter > 100) {
		t.Errorf("the start took %v and a customer %.1f bytes, want at most 5 s and 100", took, directory+counter)
	}
}
