package server_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/etcd"
	"github.com/stint-io/stint/internal/cluster/tables"
	"github.com/stint-io/stint/internal/etcdtest"
)

// TestCustomersOfMembers: what is set at one member of a cluster without Redis holds at the others within two seconds,
// and is noted with who did it; a member that starts later knows it before its first
// request; without the backend nothing is changed, and what was set holds.
func TestCustomersOfMembers(t *testing.T) {
	if testing.Short() {
		t.Skip("TestChangesHoldAtAllMembers has the same goroutines: nothing for the race detector")
	}
	t.Parallel()
	backend := etcdtest.Start(t)
	url := "etcd://" + backend.Addr() + "/plans"
	one, two := start(t, planLimits, joins(url, "n1")), start(t, planLimits, joins(url, "n2"))
	if a := two.spends("bob", "11"); a.status != http.StatusTooManyRequests {
		t.Fatalf("%+v", a)
	}
	if a := one.customers(http.MethodPut, "customer=bob&plan=pro"); a.status != http.StatusOK {
		t.Fatalf("%+v", a)
	}
	if a := one.spends("bob", "300"); a.status != http.StatusOK {
		t.Errorf("where it was set it does not hold at once: %+v", a)
	}
	begun := time.Now()
	await(t, "the other member to know", func() bool { return two.spends("bob", "300").status == http.StatusOK })
	took := time.Since(begun)
	t.Logf("seen after %v", took)
	if took > 10*time.Second { // two seconds on a machine with nothing else to do
		t.Errorf("it took %v", took)
	}
	if a := two.customers(http.MethodPut, "customer=bob&plan=pro&count=messages%3D200%25"); a.status != http.StatusOK {
		t.Errorf("%+v", a)
	}
	await(t, "the count to be known at the first", func() bool { return one.spends("bob", "600").status == http.StatusOK })
	three := start(t, planLimits, joins(url, "n3"))
	if a := three.spends("bob", "1000"); a.status != http.StatusOK { // of the 1,200 that it has of its own
		t.Errorf("a member that started later: %+v", a)
	}
	if a := one.customers(http.MethodDelete, "customer=bob"); a.status != http.StatusOK {
		t.Errorf("%+v", a)
	}
	await(t, "what was taken back to be seen", func() bool {
		return two.spends("bob", "1").status == http.StatusTooManyRequests && three.spends("bob", "1").status == http.StatusTooManyRequests
	})
	if a := two.customers(http.MethodPut, "customer=acme&plan=free"); a.status != http.StatusOK {
		t.Errorf("%+v", a)
	}
	await(t, "the customer of the file to be known as another", func() bool { return one.spends("acme", "11").status == http.StatusTooManyRequests })

	// What was changed by way of a member is in its own list.
	for _, c := range []struct {
		s       *service
		changes int
	}{{one, 2}, {two, 1}} {
		a := c.s.do(http.MethodGet, c.s.admin+"/v1/admin/audit?what=customer+bob", "")
		if strings.Count(a.body, `"customer.`) != c.changes || strings.Count(a.body, `"who":"admin from 127.0.0.1`) != c.changes {
			t.Errorf("want %d changes, and who made them: %s", c.changes, a.body)
		}
	}
	begun = time.Now()
	fill(t, backend.Addr())
	t.Logf("filled in %v", time.Since(begun))
	begun = time.Now()
	if a := one.customers(http.MethodPut, "customer=more&plan=pro"); a.status != http.StatusInsufficientStorage || !strings.Contains(a.body, "10000 of customers are in the register") || !strings.Contains(a.body, "customers.from") {
		t.Errorf("above the bound: %+v", a)
	}
	if a := one.customers(http.MethodPut, "customer=acme&plan=pro"); a.status != http.StatusOK {
		t.Errorf("one that is there can be changed when there is no room: %+v", a)
	}
	t.Logf("two changes of a full register in %v", time.Since(begun))
	backend.Kill()
	if a := one.customers(http.MethodPut, "customer=acme&plan=free"); a.status != http.StatusServiceUnavailable {
		t.Errorf("without the backend: %+v", a)
	}
	if a := one.spends("acme", "1"); a.status != http.StatusOK {
		t.Errorf("without the backend what was set is forgotten: %+v", a)
	}
}

// fill puts as many customers in the register as there may be, not by Swap of the tables, which reads all each time.
func fill(t *testing.T, addr string) {
	t.Helper()
	register, err := etcd.New(etcd.Options{Endpoints: []string{addr}, Prefix: "plans/"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = register.Close() }()
	var all sync.WaitGroup
	defer all.Wait()
	free := make(chan struct{}, 64)
	for i := range tables.MaxRecords - 1 { // acme is one
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			put(t, register, fmt.Sprint("c", i))
		})
	}
}

// put writes a customer as the tables do.
func put(t *testing.T, register cluster.Register, key string) {
	t.Helper()
	sum := sha256.Sum256([]byte(key))
	text := fmt.Sprintf(`{"key":%q,"value":%q}`, base64.StdEncoding.EncodeToString([]byte(key)), base64.StdEncoding.EncodeToString(fmt.Appendf(nil, `{"customer":%q,"plan":"free"}`, key)))
	if _, err := register.Swap(t.Context(), "customers/"+hex.EncodeToString(sum[:20]), 0, []byte(text)); err != nil {
		t.Error(err)
	}
}
