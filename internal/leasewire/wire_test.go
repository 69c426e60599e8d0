package leasewire_test

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
)

func amount(r *rand.Rand) fixed.Amount { return fixed.Amount(r.Int64() >> (1 + r.IntN(63))) }

// total is any number: running totals wrap around.
func total(r *rand.Rand) fixed.Amount { return fixed.Amount(r.Uint64() >> r.IntN(64)) }

func holding(r *rand.Rand) lease.Capacity {
	if r.IntN(4) == 0 {
		return lease.Capacity{}
	}
	return lease.Capacity{Rate: total(r), Burst: total(r), Tokens: total(r)}
}

func blob(r *rand.Rand) []byte {
	if r.IntN(2) == 0 {
		return nil
	}
	b := make([]byte, 1+r.IntN(60))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func report(t testing.TB, r *rand.Rand) *lease.Report {
	m := &lease.Report{
		Member: lease.Member{Instance: "ünit-1", Session: 1 + r.Uint64()>>1}, Version: r.Uint32(), Epoch: r.Uint64(),
		Number: r.Uint64(), Stamp: time.Duration(r.Int64()), Leaving: r.IntN(2) == 0,
	}
	for range r.IntN(3) {
		m.Usage = append(m.Usage, lease.Usage{Limit: "l" + string(rune('a'+r.IntN(26))), Admitted: r.Uint64(), Refused: r.Uint64()})
	}
	for range r.IntN(4) {
		// What a double holds exactly.
		d := lease.Demand{
			Handle: r.Uint32() >> 1, Lease: r.Uint64(), Claim: blob(r), Silent: r.IntN(2) == 0,
			Rate: fixed.Whole(r.Int64N(1 << 30)), Shortfall: fixed.Whole(r.Int64N(1 << 30)), Weight: r.Uint32(), Band: uint8(r.Uint32()),
			Closed: r.IntN(2) == 0, Returned: holding(r), AckedGrant: r.Uint64(), Within: time.Duration(r.Int64N(int64(leasewire.MaxWithin) + 1)),
			Attempted: total(r), Admitted: total(r),
		}
		if r.IntN(2) == 0 {
			var values []string
			for range r.IntN(4) {
				values = append(values, string(blob(r))) // not UTF-8
			}
			key, err := leasewire.EncodeKey(values...)
			if err != nil {
				t.Fatal(err)
			}
			d.Resource = lease.ResourceID{Limit: "a.b", Key: key}
		}
		m.Demands = append(m.Demands, d)
	}
	return m
}

// What one side sends is what the other one hears, whatever the messages were used
// for before.
func TestReportRoundTrip(t *testing.T) {
	r := seeding.Rand(t)
	var sent leasepb.Report
	var got lease.Report
	for range 5000 {
		want := report(t, r)
		if err := leasewire.ToReport(&sent, want); err != nil {
			t.Fatal(err)
		}
		heard := resent(t, &sent, &leasepb.Report{})
		if bad, err := leasewire.FromReport(&got, heard); err != nil || len(bad) > 0 {
			t.Fatal(bad, err)
		}
		if len(got.Demands) == 0 {
			got.Demands = nil
		}
		if !reflect.DeepEqual(&got, want) {
			t.Fatalf("%+v, want %+v", &got, want)
		}
	}
}

func TestGrantRoundTrip(t *testing.T) {
	r := seeding.Rand(t)
	var sent leasepb.Grant
	got := lease.Grant{To: lease.Member{Instance: "a", Session: 7}}
	for range 5000 {
		want := &lease.Grant{
			To: got.To, Epoch: r.Uint64(), Number: r.Uint64(), Status: lease.Status(r.IntN(10)), Echo: time.Duration(r.Int64()),
			Age: time.Duration(amount(r)), Lease: time.Duration(amount(r)), Refresh: time.Duration(amount(r)), NotMaster: r.IntN(2) == 0, Master: "b:1",
		}
		for range r.IntN(4) {
			s := lease.Share{
				Handle: r.Uint32(), Status: lease.Status(r.IntN(10)), AckedReport: r.Uint64(), Lease: r.Uint64(), Granted: holding(r),
				CapRate: amount(r), CapBurst: fixed.MaxAmount, Safe: amount(r), Contended: r.IntN(2) == 0, Saturated: r.IntN(2) == 0,
				Recovering: r.IntN(2) == 0, Token: blob(r),
			}
			if r.IntN(2) == 0 {
				s.Limit = lease.Terms{
					Rate: amount(r), Burst: amount(r), Semaphore: r.IntN(2) == 0, Allocation: fairshare.Allocation(r.IntN(6)), Safe: amount(r),
					Guarantees: []fairshare.Guarantee{{Band: uint8(r.Uint32()), Amount: amount(r)}},
				}
			}
			if r.IntN(2) == 0 {
				s.Suppress = bucket.Suppression{Reject: r.Float64(), Rate: amount(r), Burst: amount(r)}
				s.Limit.Suppress = &lease.Suppress{
					Report: time.Duration(1+r.IntN(100)) * 10 * time.Millisecond, Ramp: lease.Ramp(r.IntN(2)), Full: 2 + r.Float64(),
					Admitted: r.IntN(2) == 0, Independent: r.IntN(2) == 0, Window: time.Minute, Intervals: 1 + r.IntN(60),
				}
			}
			want.Shares = append(want.Shares, s)
		}
		leasewire.ToGrant(&sent, want)
		if err := leasewire.FromGrant(&got, resent(t, &sent, &leasepb.Grant{})); err != nil {
			t.Fatal(err)
		}
		if len(got.Shares) == 0 {
			got.Shares = nil
		}
		if !reflect.DeepEqual(&got, want) {
			t.Fatalf("%+v, want %+v", &got, want)
		}
	}
}

func resent[M proto.Message](t *testing.T, m, to M) M {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(raw, to); err != nil {
		t.Fatal(err)
	}
	return to
}

// A demand with a bad amount is named, and none of the others is touched.
func TestBadDemands(t *testing.T) {
	member := lease.Member{Instance: "a", Session: 1}
	for name, c := range map[string]struct {
		d    *leasepb.Demand
		want lease.Status
	}{
		"NaN":              {&leasepb.Demand{Rate: math.NaN()}, lease.StatusBadDemand},
		"infinite":         {&leasepb.Demand{Rate: math.Inf(1)}, lease.StatusBadDemand},
		"negative":         {&leasepb.Demand{Shortfall: -1}, lease.StatusBadDemand},
		"minus infinite":   {&leasepb.Demand{Shortfall: math.Inf(-1)}, lease.StatusBadDemand},
		"too large":        {&leasepb.Demand{Rate: 1e13}, lease.StatusBadDemand},
		"within less":      {&leasepb.Demand{Within: -1}, lease.StatusBadDemand},
		"within least":     {&leasepb.Demand{Within: math.MinInt64}, lease.StatusBadDemand},
		"within most":      {&leasepb.Demand{Within: math.MaxInt64}, lease.StatusBadDemand},
		"within a day":     {&leasepb.Demand{Within: int64(24 * time.Hour)}, lease.StatusOK},
		"within more":      {&leasepb.Demand{Within: int64(24*time.Hour) + 1}, lease.StatusBadDemand},
		"returned wrapped": {&leasepb.Demand{Returned: &leasepb.Capacity{Rate: -1, Burst: math.MaxInt64, Tokens: math.MinInt64}}, lease.StatusOK},
		"band":             {&leasepb.Demand{Band: 256}, lease.StatusBadDemand},
		"handle":           {&leasepb.Demand{Handle: 1 << 31}, lease.StatusBadDemand},
		"claim":            {&leasepb.Demand{Claim: make([]byte, 513)}, lease.StatusBadDemand},
		"no limit":         {&leasepb.Demand{Resource: &leasepb.Resource{}}, lease.StatusUnknownLimit},
		"long limit":       {&leasepb.Demand{Resource: &leasepb.Resource{Limit: strings.Repeat("l", 129)}}, lease.StatusUnknownLimit},
		"17 values":        {&leasepb.Demand{Resource: &leasepb.Resource{Limit: "a", Key: make([][]byte, 17)}}, lease.StatusBadKey},
		"value of 2 KiB":   {&leasepb.Demand{Resource: &leasepb.Resource{Limit: "a", Key: [][]byte{make([]byte, 2048)}}}, lease.StatusBadKey},
		"key by its ends":  {&leasepb.Demand{Resource: &leasepb.Resource{Limit: "a", Key: [][]byte{make([]byte, 1022)}}}, lease.StatusOK},
		"key past its end": {&leasepb.Demand{Resource: &leasepb.Resource{Limit: "a", Key: [][]byte{make([]byte, 1023)}}}, lease.StatusBadKey},
	} {
		good := &leasepb.Demand{Handle: 7, Rate: 2.5, Resource: &leasepb.Resource{Limit: "a", Key: [][]byte{[]byte("x")}}}
		if c.d.Handle == 0 {
			c.d.Handle = 9
		}
		var got lease.Report
		bad, err := leasewire.FromReport(&got, &leasepb.Report{Instance: "a", Session: 1, Demands: []*leasepb.Demand{good, c.d, good}})
		if err != nil || got.Member != member || len(got.Demands) != 3 {
			t.Fatalf("%s: %+v %v", name, got, err)
		}
		for _, i := range []int{0, 2} {
			if d := got.Demands[i]; d.Rate != 2_500_000 || d.Resource.Limit != "a" || d.Resource.Key != "\x01x" {
				t.Errorf("%s: its neighbour became %+v", name, d)
			}
		}
		var want []leasewire.Refused
		if c.want != lease.StatusOK {
			want = []leasewire.Refused{{Handle: c.d.Handle, Status: c.want}}
		}
		if !slices.Equal(bad, want) {
			t.Errorf("%s: refused %v, want %v", name, bad, want)
		}
		d := got.Demands[1]
		_, keyErr := leasewire.DecodeKey(d.Resource.Key)
		if c.want == lease.StatusBadDemand && (d.Rate != -1 || d.Shortfall != -1 || d.Within != 0) || (c.want == lease.StatusBadKey || c.want == lease.StatusUnknownLimit) && keyErr == nil {
			t.Errorf("%s: a coordinator could take %+v", name, d)
		}
	}
}

func TestBadReports(t *testing.T) {
	for name, m := range map[string]*leasepb.Report{
		"no name": {Session: 1}, "no session": {Instance: "a"}, "not UTF-8": {Instance: "\xff", Session: 1},
		"long name": {Instance: strings.Repeat("i", 257), Session: 1},
		"demands":   {Instance: "a", Session: 1, Demands: make([]*leasepb.Demand, leasewire.MaxDemands+1)},
	} {
		if _, err := leasewire.FromReport(new(lease.Report), m); !errors.Is(err, leasewire.ErrReport) {
			t.Errorf("%s: %v", name, err)
		}
	}
	key := lease.Demand{Resource: lease.ResourceID{Limit: "a", Key: "\x05x"}}
	if err := leasewire.ToReport(new(leasepb.Report), &lease.Report{Demands: []lease.Demand{key}}); !errors.Is(err, leasewire.ErrKey) {
		t.Errorf("a bad key: %v", err)
	}
}

func TestBadGrants(t *testing.T) {
	one := int64(-1)
	for name, s := range map[string]*leasepb.Share{
		"cap": {CapRate: &one}, "safe": {Safe: -5}, "limit": {Limit: &leasepb.Terms{Burst: -1}},
		"reject":    {Suppression: &leasepb.Suppression{Reject: 1.1}},
		"NaN":       {Suppression: &leasepb.Suppression{Reject: math.NaN()}},
		"rate":      {Suppression: &leasepb.Suppression{Rate: -1}},
		"report":    {Limit: &leasepb.Terms{Suppress: &leasepb.Suppress{Report: 1}}},
		"window":    {Limit: &leasepb.Terms{Suppress: &leasepb.Suppress{Window: 1e9, Intervals: 1000}}},
		"ramp":      {Limit: &leasepb.Terms{Suppress: &leasepb.Suppress{Full: math.NaN()}}},
		"guarantee": {Limit: &leasepb.Terms{Guarantees: []*leasepb.Guarantee{{Band: 256}}}},
	} {
		if err := leasewire.FromGrant(new(lease.Grant), &leasepb.Grant{Shares: []*leasepb.Share{s}}); !errors.Is(err, leasewire.ErrGrant) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := leasewire.FromGrant(new(lease.Grant), &leasepb.Grant{Lease: -1}); !errors.Is(err, leasewire.ErrGrant) {
		t.Errorf("a negative lease: %v", err)
	}
	var g lease.Grant
	if err := leasewire.FromGrant(&g, &leasepb.Grant{Status: 1000, Shares: []*leasepb.Share{{Status: -3}}}); err != nil ||
		g.Status == lease.StatusOK || g.Shares[0].Status == lease.StatusOK {
		t.Errorf("an unknown status became %v, %v", g.Status, err)
	}
}

// Two lists of values never have one key, and a key never two meanings.
func TestKeysAreInjective(t *testing.T) {
	seen := map[string][]string{}
	for _, values := range [][]string{
		{},
		{""},
		{"", ""},
		{"a"},
		{"a", ""},
		{"", "a"},
		{"a_b", "c"},
		{"a", "b_c"},
		{"\x01a"},
		{"a\x00"},
		{strings.Repeat("x", 127)},
		{strings.Repeat("x", 128)},
		{strings.Repeat("x", 1022)},
	} {
		key, err := leasewire.EncodeKey(values...)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q have one key", values, other)
		}
		seen[key] = values
		if back, err := leasewire.DecodeKey(key); err != nil || !slices.Equal(back, values) {
			t.Errorf("%q came back as %q, %v", values, back, err)
		}
	}
	for _, key := range []string{"\x01", "\x80\x00", "\x81\x00a", "\xff", strings.Repeat("\x00", 17), strings.Repeat("\x80", 11)} {
		if values, err := leasewire.DecodeKey(key); !errors.Is(err, leasewire.ErrKey) {
			t.Errorf("%q is taken for %q", key, values)
		}
	}
}

func FuzzDecodeKey(f *testing.F) {
	for _, s := range []string{"", "\x00", "\x01a\x00", "\x80\x01", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		values, err := leasewire.DecodeKey(key)
		if err != nil {
			return
		}
		if again, err := leasewire.EncodeKey(values...); err != nil || again != key {
			t.Fatalf("%q is %q, whose key is %q, %v", key, values, again, err)
		}
	})
}

// Whatever comes in, what leaves is within bounds, and every demand is there.
func FuzzReport(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 8 {
		var m leasepb.Report
		if err := leasewire.ToReport(&m, report(f, r)); err != nil {
			f.Fatal(err)
		}
		raw, err := proto.Marshal(&m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var m leasepb.Report
		if proto.Unmarshal(raw, &m) != nil {
			return
		}
		var got lease.Report
		bad, err := leasewire.FromReport(&got, &m)
		if err != nil {
			return
		}
		if len(got.Demands) != len(m.GetDemands()) {
			t.Fatalf("%d demands became %d", len(m.GetDemands()), len(got.Demands))
		}
		for _, d := range got.Demands {
			if d.Within < 0 || d.Within > leasewire.MaxWithin {
				t.Fatalf("%+v", d)
			}
			for _, a := range []fixed.Amount{d.Rate, d.Shortfall} {
				named := slices.ContainsFunc(bad, func(b leasewire.Refused) bool { return b.Handle == d.Handle })
				if a > fixed.MaxAmount || a < -1 || a == -1 && !named {
					t.Fatalf("%+v, refused %v", d, bad)
				}
			}
		}
	})
}

func FuzzGrant(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0x52, 0x04, 0x08, 0x01, 0x40, 0x05})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var m leasepb.Grant
		if proto.Unmarshal(raw, &m) != nil {
			return
		}
		var got lease.Grant
		if leasewire.FromGrant(&got, &m) != nil {
			return
		}
		for _, s := range got.Shares {
			for _, a := range []fixed.Amount{s.CapRate, s.CapBurst, s.Safe, s.Limit.Rate, s.Limit.Burst} {
				if a < 0 || a > fixed.MaxAmount {
					t.Fatalf("%+v", s)
				}
			}
		}
	})
}

// An instance in a steady state stays far below 10 Kbit/s: a report and a grant per
// second for ten resources.
func TestMessagesAreSmall(t *testing.T) {
	m := &lease.Report{Member: lease.Member{Instance: "checkout-7f9c6d5b8-x2x4z", Session: 1 << 63}, Version: 1, Epoch: 1 << 60, Number: 100_000, Stamp: 24 * time.Hour}
	g := &lease.Grant{Epoch: 1 << 60, Number: 1 << 62, Echo: 24 * time.Hour, Age: time.Millisecond, Lease: 5 * time.Second, Refresh: time.Second}
	var report leasepb.Report
	var grant leasepb.Grant
	sizes := func() (int, int) {
		if err := leasewire.ToReport(&report, m); err != nil {
			t.Fatal(err)
		}
		leasewire.ToGrant(&grant, g)
		return proto.Size(&report), proto.Size(&grant)
	}
	up, down := sizes()
	if up > 80 || down > 64 {
		t.Errorf("a renewal is %d and %d bytes", up, down)
	}
	for i := range 10 {
		m.Demands = append(m.Demands, lease.Demand{
			Handle: uint32(i), Lease: 1 << 20, Rate: 123_456_789, Shortfall: 5 * fixed.Token, AckedGrant: 1 << 62, Weight: 1,
			Returned: lease.Capacity{Rate: 1 << 40, Burst: 1 << 30, Tokens: 1 << 30},
		})
		g.Shares = append(g.Shares, lease.Share{
			Handle: uint32(i), AckedReport: 100_000, Lease: 1 << 20, Granted: lease.Capacity{Rate: 1 << 40, Burst: 1 << 30, Tokens: 1 << 30},
			CapRate: 1 << 40, CapBurst: fixed.MaxAmount, Safe: 1 << 30, Saturated: true, Limit: lease.Terms{Rate: 1 << 33, Burst: 1 << 33}, Token: make([]byte, 40),
		})
	}
	up, down = sizes()
	t.Logf("ten resources: a report of %d and a grant of %d bytes", up, down)
	if (up+down)*8 > 20_000 {
		t.Errorf("ten resources in one report and one grant are %d bytes", up+down)
	}
}

// What is generated says what the proto file says, field by field.
func TestGeneratedFitsTheProtoFile(t *testing.T) {
	src, err := os.ReadFile("../../proto/stint/lease/v1/lease.proto")
	if err != nil {
		t.Fatal(err)
	}
	message, member := regexp.MustCompile(`^(?:message|enum) (\w+) \{`), regexp.MustCompile(`^  (?:(repeated|optional) )?(?:([\w.]+) )?(\w+) = (\d+);`)
	want := map[string]bool{}
	within := ""
	for line := range bytes.Lines(src) {
		if m := message.FindSubmatch(line); m != nil {
			within = string(m[1])
		}
		if m := member.FindSubmatch(line); m != nil && within != "" {
			want[strings.Join([]string{within, string(m[1]), string(m[2]), string(m[3]), string(m[4])}, " ")] = true
		}
	}
	got := map[string]bool{}
	file := leasepb.File_stint_lease_v1_lease_proto
	for i := range file.Messages().Len() {
		m := file.Messages().Get(i)
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			label, kind := "", f.Kind().String()
			switch {
			case f.IsList():
				label = "repeated"
			case f.HasOptionalKeyword():
				label = "optional"
			}
			switch f.Kind() {
			case protoreflect.MessageKind:
				kind = string(f.Message().Name())
			case protoreflect.EnumKind:
				kind = string(f.Enum().Name())
			}
			got[strings.Join([]string{string(m.Name()), label, kind, string(f.Name()), strconv.Itoa(int(f.Number()))}, " ")] = true
		}
	}
	for i := range file.Enums().Len() {
		e := file.Enums().Get(i)
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			got[strings.Join([]string{string(e.Name()), "", "", string(v.Name()), strconv.Itoa(int(v.Number()))}, " ")] = true
		}
	}
	if len(want) < 50 || !reflect.DeepEqual(got, want) {
		t.Errorf("internal/gen is not what proto says, run ./scripts/generate:\n%v\nwant\n%v", got, want)
	}
}

// The statuses of the wire are those of package lease, by number and by name.
func TestStatusesHaveOneName(t *testing.T) {
	names := leasepb.Status(0).Descriptor().Values()
	for i := range names.Len() {
		want := "STATUS_" + strings.ToUpper(lease.Status(names.Get(i).Number()).String())
		if got := string(names.Get(i).Name()); got != want {
			t.Errorf("status %d is %s, want %s", i, got, want)
		}
	}
	if lease.Status(names.Len()).String() != "unknown" {
		t.Errorf("package lease has a status that the wire has not: %v", lease.Status(names.Len()))
	}
}
