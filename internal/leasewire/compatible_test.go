package leasewire_test

import (
	"encoding/hex"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
)

// recordedReport and recordedGrant are messages with every field set, encoded when the
// protocol's version was 2. Names of fields are not on the wire: they may change, numbers and
// types may not.
const (
	recordedReport = "0a0d636865636b6f75742d37663963118877665544332211180220222880e0f0ced00130013a5b080312180a03617069120261621201631a04757365721a047061746819000000000000f83f21000000000000024028053209080b1080b6dc05180d380e4008480950015a05636c61696d600168c09fab037081ade2047880ade204410c000000000000004a090a03617069104e185a"
	recordedGrant  = "090c00000000000000102318082080e0f0ced00128c08db7013080e497d012388094ebdc0340014a0e3139322e302e322e313a38303831526f08031009182220052a0908151080e3be0a1817301838c0f0f50b401a4801500158016232081d108087a70e18012005281f3204082010213a1d0880e1eb171080b09dc2df01183c2001290000000000000c40300138016a05746f6b656e721009000000000000d03f101b1880feac0d"
)

// everyReport is what recordedReport says.
func everyReport() *lease.Report {
	return &lease.Report{
		Member: lease.Member{Instance: "checkout-7f9c", Session: 0x1122334455667788}, Version: 2, Epoch: 12, Number: 34,
		Stamp: 56 * time.Second, Leaving: true,
		Usage: []lease.Usage{{Limit: "api", Admitted: 78, Refused: 90}},
		Demands: []lease.Demand{{
			Handle: 3, Resource: lease.ResourceID{Limit: "api", Key: "\x02ab\x01c"}, Attributes: []string{"user", "path"},
			Lease: 5, Claim: []byte("claim"), Silent: true, Rate: 1_500_000, Shortfall: 2_250_000, Within: 7 * time.Millisecond,
			Weight: 8, Band: 9, Attempted: 10_000_001, Admitted: 10_000_000, Closed: true,
			Returned: lease.Capacity{Rate: 11, Burst: 12_000_000, Tokens: 13}, AckedGrant: 14,
		}},
	}
}

// everyGrant is what recordedGrant says.
func everyGrant() *lease.Grant {
	return &lease.Grant{
		Epoch: 12, Number: 35, Status: lease.StatusBroken, Echo: 56 * time.Second, Age: 3 * time.Millisecond,
		Lease: 5 * time.Second, Refresh: time.Second, NotMaster: true, Master: "192.0.2.1:8081",
		Shares: []lease.Share{{
			Handle: 3, Status: lease.StatusTooMany, AckedReport: 34, Lease: 5,
			Granted: lease.Capacity{Rate: 21, Burst: 22_000_000, Tokens: 23}, CapRate: 24, CapBurst: 25_000_000, Safe: 26,
			Contended: true, Saturated: true, Recovering: true, Token: []byte("token"),
			Suppress: bucket.Suppression{Reject: 0.25, Rate: 27, Burst: 28_000_000},
			Limit: lease.Terms{
				Rate: 29, Burst: 30_000_000, Semaphore: true, Allocation: fairshare.Allocation(leasepb.Allocation_ALLOCATION_BUSY), Safe: 31,
				Guarantees: []fairshare.Guarantee{{Band: 32, Amount: fixed.Amount(33)}},
				Suppress:   &lease.Suppress{Report: 50 * time.Millisecond, Window: time.Minute, Intervals: 60, Ramp: lease.RampLinear, Full: 3.5, Admitted: true, Independent: true},
			},
		}},
	}
}

// TestRecordedMessagesStayTheSame: what was recorded is read as it was, and is written byte for
// byte as it was.
func TestRecordedMessagesStayTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	written := func(m proto.Message) string {
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return hex.EncodeToString(raw)
	}
	read := func(recorded string, m proto.Message) {
		raw, err := hex.DecodeString(recorded)
		if err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(raw, m); err != nil {
			t.Fatal(err)
		}
	}

	var report leasepb.Report
	if err := leasewire.ToReport(&report, everyReport()); err != nil {
		t.Fatal(err)
	}
	if s := written(&report); s != recordedReport {
		t.Errorf("the report is written as\n%s, want\n%s", s, recordedReport)
	}
	var gotReport lease.Report
	report.Reset()
	read(recordedReport, &report)
	if bad, err := leasewire.FromReport(&gotReport, &report); err != nil || len(bad) > 0 || !reflect.DeepEqual(&gotReport, everyReport()) {
		t.Errorf("the report is read as %+v, %v, %v, want %+v", gotReport, bad, err, *everyReport())
	}

	var grant leasepb.Grant
	leasewire.ToGrant(&grant, everyGrant())
	if s := written(&grant); s != recordedGrant {
		t.Errorf("the grant is written as\n%s, want\n%s", s, recordedGrant)
	}
	var gotGrant lease.Grant
	grant.Reset()
	read(recordedGrant, &grant)
	if err := leasewire.FromGrant(&gotGrant, &grant); err != nil || !reflect.DeepEqual(&gotGrant, everyGrant()) {
		t.Errorf("the grant is read as %+v, %v, want %+v", gotGrant, err, *everyGrant())
	}
}
