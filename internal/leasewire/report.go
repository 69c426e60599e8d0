package leasewire

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
)

// The bounds of a report.
const (
	MaxInstance  = 256    // bytes of an instance's name
	MaxLimitName = 128    // bytes of a limit's name
	MaxDemands   = 10_000 // in one report
	MaxClaim     = 512    // bytes
	MaxAttribute = 1024   // bytes of the name of one of a key's attributes
	// MaxWithin bounds Demand.Within. Not longer: a wait of more than a day is sent as 0,
	// without end. Not shorter: batch jobs do wait for hours.
	MaxWithin  = 24 * time.Hour
	MaxMessage = 1 << 20 // bytes of a report; MaxDemands with usual keys fit
	MaxUsage   = 1000    // limits whose usage is read of one report
	maxHandle  = 1<<31 - 1
)

// ErrReport is wrapped by the errors of FromReport.
var ErrReport = errors.New("the report cannot be taken")

// Refused is a demand that cannot be used, and why.
type Refused struct {
	Handle uint32
	Status lease.Status // StatusBadDemand, StatusBadKey or StatusUnknownLimit
}

// refused is the Rate and the Shortfall of a demand that is refused. A coordinator answers
// negative amounts with StatusBadDemand. Running totals are not checked: they wrap around, so
// any number can be one.
const refused fixed.Amount = -1

// FromReport translates a report that came from outside into dst, whose slices it
// uses again, and returns the demands that are refused. These stand in dst as well, so
// that the coordinator answers them: a bad demand with a negative Rate and Shortfall, a bad
// key as a key that [DecodeKey] refuses. What was returned counts
// whatever else is wrong. dst refers to the bytes of src's claims.
//
// An error means that nothing of the report can be used; it says nothing that src
// holds but sizes.
func FromReport(dst *lease.Report, src *leasepb.Report) ([]Refused, error) {
	instance := src.GetInstance()
	switch {
	case instance == "" || len(instance) > MaxInstance || !utf8.ValidString(instance):
		return nil, fmt.Errorf("leasewire: %w: the name of the instance has %d bytes, want 1 to %d of UTF-8", ErrReport, len(instance), MaxInstance)
	case src.GetSession() == 0:
		return nil, fmt.Errorf("leasewire: %w: session is 0, draw a number at random when the process starts", ErrReport)
	case len(src.GetDemands()) > MaxDemands:
		return nil, fmt.Errorf("leasewire: %w: %d demands, send at most %d in one report", ErrReport, len(src.GetDemands()), MaxDemands)
	}
	*dst = lease.Report{
		Member:  lease.Member{Instance: instance, Session: src.GetSession()},
		Version: src.GetVersion(), Epoch: src.GetEpoch(), Number: src.GetNumber(),
		Stamp: time.Duration(src.GetStamp()), Leaving: src.GetLeaving(), Complete: src.GetComplete(), Site: src.GetSite(),
		Demands: slices.Grow(dst.Demands[:0], len(src.GetDemands())),
	}
	for _, u := range src.GetUsage()[:min(len(src.GetUsage()), MaxUsage)] {
		dst.Usage = append(dst.Usage, lease.Usage{Limit: u.GetLimit(), Admitted: u.GetAdmitted(), Refused: u.GetRefused()})
	}
	var bad []Refused
	for _, d := range src.GetDemands() {
		demand, status := fromDemand(d)
		if status != lease.StatusOK {
			bad = append(bad, Refused{demand.Handle, status})
		}
		dst.Demands = append(dst.Demands, demand)
	}
	return bad, nil
}

func fromDemand(d *leasepb.Demand) (lease.Demand, lease.Status) {
	out := lease.Demand{
		Handle: d.GetHandle(), Lease: d.GetLease(), Claim: d.GetClaim(), Silent: d.GetSilent(), Weight: d.GetWeight(),
		AckedGrant: d.GetAckedGrant(), Closed: d.GetClosed(), Returned: fromTotals(d.GetReturned()),
		Attempted: fixed.Amount(d.GetAttempted()), Admitted: fixed.Amount(d.GetAdmitted()), Spare: d.GetSpare(),
	}
	status := lease.StatusOK
	if r := d.GetResource(); r != nil {
		if out.Resource, status = fromResource(r); status != lease.StatusOK {
			return out, status
		}
		out.Attributes = r.GetAttributes()
	}
	var errRate, errShortfall error
	out.Rate, errRate = fixed.AmountOf(d.GetRate())
	out.Shortfall, errShortfall = fixed.AmountOf(d.GetShortfall())
	if errRate != nil || errShortfall != nil || out.Handle > maxHandle || d.GetBand() > math.MaxUint8 || len(out.Claim) > MaxClaim ||
		d.GetWithin() < 0 || d.GetWithin() > int64(MaxWithin) {
		out.Rate, out.Shortfall, out.Claim = refused, refused, nil
		return out, lease.StatusBadDemand
	}
	out.Band, out.Within = uint8(d.GetBand()), time.Duration(d.GetWithin())
	var ok bool
	if out.Claims, ok = fromClaims(d.GetClaims()); !ok {
		out.Rate, out.Shortfall, out.Claim = refused, refused, nil
		return out, lease.StatusBadDemand
	}
	out.Most = lease.Capacity{Rate: fixed.Amount(d.GetMost().GetRate()), Burst: fixed.Amount(d.GetMost().GetBurst())}
	if !inRange(int64(out.Most.Rate)) || !inRange(int64(out.Most.Burst)) {
		out.Most, out.Rate, out.Shortfall, out.Claim = lease.Capacity{}, refused, refused, nil
		return out, lease.StatusBadDemand
	}
	return out, status
}

// fromClaims translates the claims of a site; ok is false if one is out of range.
func fromClaims(claims []*leasepb.Claim) (out []lease.Claim, ok bool) {
	if len(claims) > lease.MaxClaims {
		return nil, false
	}
	for _, c := range claims {
		rate, err := fixed.AmountOf(c.GetRate())
		if err != nil || c.GetBand() > math.MaxUint8 {
			return nil, false
		}
		out = append(out, lease.Claim{Rate: rate, Weight: c.GetWeight(), Band: uint8(c.GetBand())})
	}
	return out, true
}

// badKey is not a key: it announces a longer value than it has.
const badKey = "\x01"

func fromResource(r *leasepb.Resource) (lease.ResourceID, lease.Status) {
	id := lease.ResourceID{Limit: r.GetLimit(), Key: badKey}
	if id.Limit == "" || len(id.Limit) > MaxLimitName || !utf8.ValidString(id.Limit) {
		// Not empty: that would mean a handle which is known.
		return lease.ResourceID{Limit: badKey, Key: badKey}, lease.StatusUnknownLimit
	}
	if encoded := r.GetEncoded(); len(encoded) > 0 {
		if len(encoded) > MaxMemberKey || len(r.GetKey()) > 0 {
			return id, lease.StatusBadKey
		}
		id.Key = MemberKey(string(encoded))
		return id, lease.StatusOK
	}
	if len(r.GetKey()) > MaxKeyValues {
		return id, lease.StatusBadKey
	}
	if len(r.GetAttributes()) > MaxKeyValues || slices.ContainsFunc(r.GetAttributes(), func(s string) bool { return len(s) > MaxAttribute }) {
		return id, lease.StatusBadKey
	}
	values, room := make([]string, len(r.GetKey())), MaxKeyBytes
	for i, v := range r.GetKey() {
		if room -= len(v); room < 0 {
			return id, lease.StatusBadKey
		}
		values[i] = string(v)
	}
	key, err := EncodeKey(values...)
	if err != nil {
		return id, lease.StatusBadKey
	}
	id.Key = key
	return id, lease.StatusOK
}

// ToReport translates a report into dst, whose messages it uses again. dst refers to
// src's claims. A key that EncodeKey did not return is an error.
func ToReport(dst *leasepb.Report, src *lease.Report) error {
	dst.Instance, dst.Session, dst.Version, dst.Epoch = src.Instance, src.Session, src.Version, src.Epoch
	dst.Number, dst.Stamp, dst.Leaving, dst.Complete, dst.Site = src.Number, int64(src.Stamp), src.Leaving, src.Complete, src.Site
	dst.Usage = dst.Usage[:0]
	for _, u := range src.Usage[:min(len(src.Usage), MaxUsage)] {
		dst.Usage = append(dst.Usage, &leasepb.Usage{Limit: u.Limit, Admitted: u.Admitted, Refused: u.Refused})
	}
	demands := dst.Demands
	dst.Demands = slices.Grow(demands[:0], len(src.Demands))
	for i := range src.Demands {
		s, d := &src.Demands[i], (*leasepb.Demand)(nil)
		if i < len(demands) {
			d = demands[i]
		} else {
			d = new(leasepb.Demand)
		}
		var resource *leasepb.Resource
		if s.Resource.Limit != "" {
			var err error
			if resource, err = toResource(s); err != nil {
				return err
			}
		}
		d.Handle, d.Resource, d.Lease, d.Claim, d.Closed = s.Handle, resource, s.Lease, s.Claim, s.Closed
		d.Silent, d.Weight, d.Band, d.AckedGrant, d.Spare = s.Silent, s.Weight, uint32(s.Band), s.AckedGrant, s.Spare
		d.Rate, d.Shortfall, d.Within = s.Rate.Float(), s.Shortfall.Float(), 0
		if s.Within <= MaxWithin {
			d.Within = int64(s.Within)
		}
		d.Attempted, d.Admitted = int64(s.Attempted), int64(s.Admitted)
		d.Returned = toCapacity(d.Returned, s.Returned)
		d.Claims, d.Most = d.Claims[:0], toCapacity(d.Most, s.Most)
		for _, c := range s.Claims[:min(len(s.Claims), lease.MaxClaims)] {
			d.Claims = append(d.Claims, &leasepb.Claim{Rate: c.Rate.Float(), Weight: c.Weight, Band: uint32(c.Band)})
		}
		dst.Demands = append(dst.Demands, d)
	}
	return nil
}

func toResource(d *lease.Demand) (*leasepb.Resource, error) {
	r := &leasepb.Resource{Limit: d.Resource.Limit, Attributes: d.Attributes}
	if encoded, ok := FromMemberKey(d.Resource.Key); ok {
		r.Encoded = []byte(encoded)
		return r, nil
	}
	values, err := DecodeKey(d.Resource.Key)
	if err != nil {
		return nil, fmt.Errorf("%w, in a demand on limit %q", err, d.Resource.Limit)
	}
	for _, v := range values {
		r.Key = append(r.Key, []byte(v))
	}
	return r, nil
}

// fromTotals translates running totals, which wrap around: only their difference to earlier
// ones has a meaning, and the coordinator or agent checks it.
func fromTotals(h *leasepb.Capacity) lease.Capacity {
	return lease.Capacity{Rate: fixed.Amount(h.GetRate()), Burst: fixed.Amount(h.GetBurst()), Tokens: fixed.Amount(h.GetTokens())}
}

// inRange says whether an amount of the wire is within the bounds of amounts.
func inRange(n int64) bool { return n >= 0 && n <= int64(fixed.MaxAmount) }

// toCapacity translates running totals; nil if all are zero.
func toCapacity(dst *leasepb.Capacity, h lease.Capacity) *leasepb.Capacity {
	if h == (lease.Capacity{}) {
		return nil
	}
	if dst == nil {
		dst = new(leasepb.Capacity)
	}
	dst.Rate, dst.Burst, dst.Tokens = int64(h.Rate), int64(h.Burst), int64(h.Tokens)
	return dst
}
