package leasewire

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
)

// MaxPath is how many levels of coordinators there can be. Not fewer: cluster, region, continent
// and world are four. Not more: each level is a round trip, and a part of a lease's length.
const MaxPath = 16

// ErrGrant is wrapped by the errors of FromGrant.
var ErrGrant = errors.New("the grant cannot be taken")

// ToGrant translates a grant into dst, whose messages it uses again. The member is not
// on the wire: the stream is the member's. dst refers to src's tokens.
func ToGrant(dst *leasepb.Grant, src *lease.Grant) {
	dst.Epoch, dst.Number, dst.Status = src.Epoch, src.Number, leasepb.Status(src.Status)
	dst.Echo, dst.Age = int64(src.Echo), int64(src.Age)
	dst.Lease, dst.Refresh = int64(src.Lease), int64(src.Refresh)
	dst.NotMaster, dst.Master, dst.Path, dst.Shards = src.NotMaster, src.Master, src.Path, uint32(src.Shards)
	shares := dst.Shares
	dst.Shares = slices.Grow(shares[:0], len(src.Shares))
	for i := range src.Shares {
		s := new(leasepb.Share)
		if i < len(shares) {
			s = shares[i]
		}
		toShare(s, &src.Shares[i])
		dst.Shares = append(dst.Shares, s)
	}
}

func toShare(dst *leasepb.Share, src *lease.Share) {
	dst.Handle, dst.Status, dst.AckedReport = src.Handle, leasepb.Status(src.Status), src.AckedReport
	dst.Lease, dst.Granted = src.Lease, toCapacity(dst.Granted, src.Granted)
	dst.CapRate, dst.CapBurst = toCap(src.CapRate), toCap(src.CapBurst)
	dst.Safe, dst.Token, dst.Shard = int64(src.Safe), src.Token, uint32(src.Shard)
	dst.Contended, dst.Saturated, dst.Recovering = src.Contended, src.Saturated, src.Recovering
	dst.Limit = toTerms(&src.Limit)
	dst.Suppression = nil
	if s := src.Suppress; s != (bucket.Suppression{}) {
		dst.Suppression = &leasepb.Suppression{Reject: s.Reject, Rate: int64(s.Rate), Burst: int64(s.Burst)}
	}
}

func toCap(a fixed.Amount) *int64 {
	if a >= fixed.MaxAmount {
		return nil
	}
	n := int64(a)
	return &n
}

func toTerms(t *lease.Terms) *leasepb.Terms {
	if t.Rate == 0 && t.Burst == 0 && !t.Semaphore && t.Allocation == 0 && t.Safe == 0 && len(t.Guarantees) == 0 && t.Suppress == nil {
		return nil
	}
	out := &leasepb.Terms{
		Rate: int64(t.Rate), Burst: int64(t.Burst), Semaphore: t.Semaphore,
		Allocation: leasepb.Allocation(t.Allocation), Safe: int64(t.Safe),
	}
	if s := t.Suppress; s != nil {
		out.Suppress = &leasepb.Suppress{
			Report: int64(s.Report), Window: int64(s.Window), Intervals: uint32(s.Intervals),
			Ramp: leasepb.Ramp(s.Ramp), Full: s.Full, Admitted: s.Admitted, Independent: s.Independent,
		}
	}
	for _, g := range t.Guarantees {
		out.Guarantees = append(out.Guarantees, &leasepb.Guarantee{Band: uint32(g.Band), Amount: int64(g.Amount)})
	}
	return out
}

// FromGrant translates a grant into dst, whose slices it uses again. To stays as it
// is: the caller knows whose stream it is. dst refers to the bytes of src's tokens.
// After an error the grant must not be used: the totals of a coordinator that sends values out
// of range cannot be relied on.
func FromGrant(dst *lease.Grant, src *leasepb.Grant) error {
	*dst = lease.Grant{
		To: dst.To, Epoch: src.GetEpoch(), Number: src.GetNumber(), Status: fromStatus(src.GetStatus()),
		Echo: time.Duration(src.GetEcho()), Age: time.Duration(src.GetAge()),
		Lease: time.Duration(src.GetLease()), Refresh: time.Duration(src.GetRefresh()),
		NotMaster: src.GetNotMaster(), Master: src.GetMaster(),
		Path:   src.GetPath(),
		Shards: int(src.GetShards()),
		Shares: slices.Grow(dst.Shares[:0], len(src.GetShares())),
	}
	if len(dst.Path) > MaxPath {
		return fmt.Errorf("leasewire: %w: %d coordinators above, want at most %d", ErrGrant, len(dst.Path), MaxPath)
	}
	if src.GetShards() > lease.MaxShards {
		return fmt.Errorf("leasewire: %w: %d shards, want at most %d", ErrGrant, src.GetShards(), lease.MaxShards)
	}
	if dst.Age < 0 || dst.Lease < 0 || dst.Refresh < 0 {
		return fmt.Errorf("leasewire: %w: age %v, lease %v or refresh %v is negative", ErrGrant, dst.Age, dst.Lease, dst.Refresh)
	}
	for _, s := range src.GetShares() {
		dst.Shares = append(dst.Shares, lease.Share{})
		if err := fromShare(&dst.Shares[len(dst.Shares)-1], s); err != nil {
			return err
		}
	}
	return nil
}

func fromShare(dst *lease.Share, src *leasepb.Share) error {
	*dst = lease.Share{
		Handle: src.GetHandle(), Status: fromStatus(src.GetStatus()), AckedReport: src.GetAckedReport(), Lease: src.GetLease(),
		CapRate: fixed.MaxAmount, CapBurst: fixed.MaxAmount, Safe: fixed.Amount(src.GetSafe()), Granted: fromTotals(src.GetGranted()),
		Contended: src.GetContended(), Saturated: src.GetSaturated(), Recovering: src.GetRecovering(), Token: src.GetToken(),
	}
	if src.GetShard() >= lease.MaxShards {
		return fmt.Errorf("leasewire: %w: handle %d is in shard %d, want less than %d", ErrGrant, dst.Handle, src.GetShard(), lease.MaxShards)
	}
	dst.Shard = int(src.GetShard())
	bad := func(field string, n int64) error {
		return fmt.Errorf("leasewire: %w: %s of handle %d is %d, want 0 to %d", ErrGrant, field, dst.Handle, n, int64(fixed.MaxAmount))
	}
	if src.CapRate != nil {
		dst.CapRate = fixed.Amount(src.GetCapRate())
	}
	if src.CapBurst != nil {
		dst.CapBurst = fixed.Amount(src.GetCapBurst())
	}
	for _, a := range []struct {
		field string
		n     fixed.Amount
	}{{"cap_rate", dst.CapRate}, {"cap_burst", dst.CapBurst}, {"safe", dst.Safe}} {
		if !inRange(int64(a.n)) {
			return bad(a.field, int64(a.n))
		}
	}
	t := src.GetLimit()
	if !inRange(t.GetRate()) || !inRange(t.GetBurst()) || !inRange(t.GetSafe()) {
		return bad("limit", outOfRange(t.GetRate(), t.GetBurst(), t.GetSafe()))
	}
	dst.Limit = lease.Terms{
		Rate: fixed.Amount(t.GetRate()), Burst: fixed.Amount(t.GetBurst()), Semaphore: t.GetSemaphore(), Safe: fixed.Amount(t.GetSafe()),
	}
	if a := t.GetAllocation(); a >= 0 && a <= math.MaxUint8 {
		dst.Limit.Allocation = fairshare.Allocation(a)
	}
	for _, g := range t.GetGuarantees() {
		if g.GetBand() > math.MaxUint8 || !inRange(g.GetAmount()) {
			return bad("a guarantee", g.GetAmount())
		}
		dst.Limit.Guarantees = append(dst.Limit.Guarantees, fairshare.Guarantee{Band: uint8(g.GetBand()), Amount: fixed.Amount(g.GetAmount())})
	}
	return fromSuppression(dst, src)
}

// fromSuppression translates the settings of suppression and what is in force.
func fromSuppression(dst *lease.Share, src *leasepb.Share) error {
	if t := src.GetLimit().GetSuppress(); t != nil {
		s := &lease.Suppress{
			Report: time.Duration(t.GetReport()), Window: time.Duration(t.GetWindow()), Intervals: int(t.GetIntervals()),
			Ramp: lease.Ramp(min(max(t.GetRamp(), 0), math.MaxUint8)), Full: t.GetFull(), Admitted: t.GetAdmitted(), Independent: t.GetIndependent(),
		}
		if err := s.Validate(); err != nil {
			return fmt.Errorf("leasewire: %w: limit of handle %d: %w", ErrGrant, dst.Handle, err)
		}
		dst.Limit.Suppress = s
	}
	s := src.GetSuppression()
	// Written so that NaN is refused.
	if !(s.GetReject() >= 0 && s.GetReject() <= 1) || !inRange(s.GetRate()) || !inRange(s.GetBurst()) {
		return fmt.Errorf("leasewire: %w: handle %d is to refuse the fraction %v at a rate of %d and a burst of %d millionths, want 0 to 1 and at most %d",
			ErrGrant, dst.Handle, s.GetReject(), s.GetRate(), s.GetBurst(), int64(fixed.MaxAmount))
	}
	dst.Suppress = bucket.Suppression{Reject: s.GetReject(), Rate: fixed.Amount(s.GetRate()), Burst: fixed.Amount(s.GetBurst())}
	return nil
}

func outOfRange(amounts ...int64) int64 {
	for _, n := range amounts {
		if !inRange(n) {
			return n
		}
	}
	return 0
}

// fromStatus translates a status; one that this version does not know is a refusal.
func fromStatus(s leasepb.Status) lease.Status {
	if s < 0 || s > math.MaxUint8 {
		return math.MaxUint8
	}
	return lease.Status(s)
}
