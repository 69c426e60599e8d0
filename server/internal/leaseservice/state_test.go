package leaseservice

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// A coordinator waits for leases of the one before, and of one that it knows nothing of.
func TestState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "when", "missing")
	former := State{}
	open := func(lease time.Duration) State {
		t.Helper()
		st, err := OpenState(dir, lease, false)
		if err != nil {
			t.Fatal(err)
		}
		if st.Epoch <= former.Epoch || st.Former != former.Epoch || former.Key != nil && !bytes.Equal(st.Key, former.Key) || (st.Recovery > 0) != (st.Why != "") {
			t.Fatalf("epoch %d of %d after %d, learns for %v because %q", st.Epoch, st.Former, former.Epoch, st.Recovery, st.Why)
		}
		former = st
		return st
	}
	end := func(st *State, nothingLent bool) {
		t.Helper()
		if err := st.Close(nothingLent); err != nil {
			t.Fatal(err)
		}
	}
	first := open(time.Minute)
	if first.Recovery < time.Minute || len(first.Key) != keyLength || bytes.Equal(first.Key, make([]byte, keyLength)) {
		t.Fatalf("without a file: learns for %v", first.Recovery)
	}
	if _, err := OpenState(dir, 0, false); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("the directory is used twice: %v", err)
	}
	end(&first, false) // as after a crash
	crashed := open(time.Second)
	if crashed.Recovery < time.Minute {
		t.Fatalf("after a crash: learns for %v", crashed.Recovery)
	}
	end(&crashed, false)
	twice := open(time.Second)
	if twice.Recovery < time.Minute {
		t.Errorf("after two: learns for %v, leases of the first may be out", twice.Recovery)
	}
	if err := twice.Raise(twice.Epoch + 7); err != nil {
		t.Fatal(err)
	}
	end(&twice, false)
	former = twice
	lent := open(time.Second)
	if lent.Recovery < time.Minute {
		t.Errorf("ended with something lent: learns for %v", lent.Recovery)
	}
	end(&lent, true)
	clean := open(0)
	if clean.Recovery != 0 {
		t.Errorf("after a good end: learns for %v", clean.Recovery)
	}
	end(&clean, false)
	after := open(0)
	if after.Recovery < lease.DefaultLease || after.Recovery > 2*lease.DefaultLease {
		t.Errorf("learns for %v, leases are %v", after.Recovery, lease.DefaultLease)
	}
	end(&after, true)
	// The file is lost.
	if err := os.Remove(filepath.Join(dir, StateFile)); err != nil {
		t.Fatal(err)
	}
	now := uint64(time.Now().UnixNano())
	former = State{}
	if lost := open(0); lost.Recovery < lease.DefaultLease || lost.Epoch < now {
		t.Errorf("after the loss of the file: epoch %d at %d, learns for %v", lost.Epoch, now, lost.Recovery)
	}
	info, err := os.Stat(filepath.Join(dir, StateFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info.Mode(), err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 { // and the lock
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// One that nobody was before need not wait.
func TestFirstState(t *testing.T) {
	if st, err := OpenState(t.TempDir(), 0, true); err != nil || st.Recovery != 0 {
		t.Errorf("learns for %v, %v", st.Recovery, err)
	}
}

func TestBadState(t *testing.T) {
	key, err := json.Marshal(bytes.Repeat([]byte{'K'}, keyLength))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty": "", "no JSON": "epoch: 1", "no epoch": `{"key":` + string(key) + `,"lease_ns":1}`,
		"short key": `{"epoch":1,"key":"S0tLSw==","lease_ns":1}`, "no lease": `{"epoch":1,"key":` + string(key) + `}`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, StateFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenState(dir, 0, false)
		if err == nil || !strings.Contains(err.Error(), "remove it once") || strings.Contains(err.Error(), "S0tL") {
			t.Errorf("%s: %v", name, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		if _, err := OpenState(dir, 0, false); err == nil || !strings.Contains(err.Error(), "directory") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	a, b := Fresh(time.Minute), Fresh(time.Minute)
	if a.Recovery < time.Minute || a.Epoch == 0 || bytes.Equal(a.Key, b.Key) || a.Close(true) != nil {
		t.Errorf("without a directory: %d %v", a.Epoch, a.Recovery)
	}
}

// Rates are exact to the millionth, rounded down.
func TestPerSecond(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		rate := limit.Rate{Count: r.Int64N(limit.MaxCount) >> r.IntN(62), Period: time.Duration(1 + r.Int64()>>(1+r.IntN(60)))}
		want := new(big.Int).Mul(big.NewInt(rate.Count), big.NewInt(1e15))
		want.Div(want, big.NewInt(int64(rate.Period)))
		if most := big.NewInt(int64(fixed.MaxAmount)); want.Cmp(most) > 0 {
			want = most
		}
		if got := perSecond(rate); int64(got) != want.Int64() {
			t.Fatalf("%v: %d, want %v", rate, got, want)
		}
	}
	for rate, want := range map[limit.Rate]fixed.Amount{
		{}: 0, {Period: 1}: 0, {Count: 1, Period: time.Second}: fixed.Token, {Count: 2, Period: 3 * time.Second}: 666_666,
		// Where the product is about 2^64, with the shortest period.
		{Count: 18_446, Period: 1}: fixed.MaxAmount, {Count: 18_447, Period: 1}: fixed.MaxAmount, {Count: 1, Period: 1}: 1_000_000_000 * fixed.Token,
	} {
		if got := perSecond(rate); got != want {
			t.Errorf("%v is %d, want %d", rate, got, want)
		}
	}
}

func TestTerms(t *testing.T) {
	x := newIndex(limits(t, `limits:
  - name: all
    rate: 90/minute
    sharing: leased
    lease: {safe: 1/2s, guarantees: {2: 0.5/s, 0: 1/s}}
  - {name: busy, rate: 90/minute, sharing: leased, lease: {allocation: busy, tolerance: 0.25, change: 0.125}}
  - {name: free, unlimited: true, sharing: leased}
  - {name: open, algorithm: concurrency, unlimited: true, sharing: leased}
  - {name: none, rate: 0/s, sharing: leased}
  - {name: huge, rate: 1000000000000000/s, sharing: leased}
  - {name: places, algorithm: concurrency, max_in_flight: 3, sharing: leased, lease: {safe: 1}}
  - {name: keyed, key: [a], rate: 1/s, sharing: leased}
`))
	for name, want := range map[string]lease.Terms{
		"all": {
			Rate: 1_500_000, Burst: fixed.Whole(90), Safe: 500_000,
			Guarantees: []fairshare.Guarantee{{Band: 0, Amount: fixed.Token}, {Band: 2, Amount: 500_000}},
		},
		"busy": {Rate: 1_500_000, Burst: fixed.Whole(90), Allocation: fairshare.Busy, BusyTolerance: 0.25, BusyChange: 0.125},
		"free": {Rate: unlimited, Burst: unlimited, Allocation: fairshare.None}, "none": {},
		"open":   {Burst: unlimited, Semaphore: true, Allocation: fairshare.None},
		"huge":   {Rate: unlimited, Burst: unlimited},
		"places": {Burst: fixed.Whole(3), Semaphore: true, Safe: fixed.Token},
	} {
		got, status := x.resolve(lease.ResourceID{Limit: name})
		if status != lease.StatusOK || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %v, want %+v", name, got, status, want)
		}
	}
	for _, key := range []string{"", "\x05a", noKey, "\x01a\x01b"} {
		if _, status := x.resolve(lease.ResourceID{Limit: "keyed", Key: key}); status != lease.StatusBadKey {
			t.Errorf("key %q: %v", key, status)
		}
	}
}

// Limit files and the machines have the same allocations, by number.
func TestAllocations(t *testing.T) {
	for a := range rules.AllocationBusy + 1 {
		if fairshare.Allocation(a).String() != a.String() {
			t.Errorf("allocation %d is %v in limit files and %v to the coordinator", a, a, fairshare.Allocation(a))
		}
	}
	if (rules.AllocationBusy+1).String() != "unknown" || int(rules.AllocationBusy) != int(fairshare.Busy) {
		t.Error("an allocation is missing here")
	}
}

// TestRaisedEpochIsKept: what a coordinator has gone up to counts for the next one, also
// where that is far ahead of the clock.
func TestRaisedEpochIsKept(t *testing.T) {
	dir := t.TempDir()
	st, err := OpenState(dir, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	const far = 1 << 62
	if err := st.Raise(far); err != nil {
		t.Fatal(err)
	}
	for _, nothingLent := range []bool{false, true} {
		if err := st.Close(nothingLent); err != nil {
			t.Fatal(err)
		}
		former := max(st.Epoch, far)
		if st, err = OpenState(dir, 0, false); err != nil {
			t.Fatal(err)
		}
		if st.Former != former || st.Epoch <= former || (st.Recovery == 0) != nothingLent {
			t.Errorf("epoch %d after %d, of which %d is known; learns for %v", st.Epoch, former, st.Former, st.Recovery)
		}
	}
	if err := st.Close(true); err != nil {
		t.Error(err)
	}
}
