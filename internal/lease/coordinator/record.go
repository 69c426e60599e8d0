package coordinator

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease/holding"
)

// Record is what a coordinator keeps in the backend of a cluster for its successor.
type Record struct {
	// Holders are those who may hold leases.
	Holders holding.Holders
	// Epoch is the coordinator's where it has risen above that of its term; 0 = it has not.
	Epoch uint64
	// InSync are the replicas that know what is left of each bucket.
	InSync InSync
	// Used is what is left of each bucket, in the last record of a coordinator that hands over; nil =
	// nothing is said.
	Used *Used
}

// InSync is which replicas know all that their coordinator has lent: it sends nothing that they have not
// confirmed. The zero value is none.
type InSync struct {
	Epoch    uint64   // of the coordinator
	Replicas []uint64 // each a random number
}

// Has says whether the replica is in sync with the coordinator of an epoch.
func (s *InSync) Has(epoch, replica uint64) bool {
	return s.Epoch == epoch && slices.Contains(s.Replicas, replica)
}

// The bounds of a Record.
const (
	// maxRecord bounds its bytes. Not more: a Kubernetes object can have 256 KiB of annotations, and a record is
	// base64 there twice, in the JSON of the election and as an annotation. A record that is too large would not be
	// written: new sessions would be lent nothing, and a leader could not hand over.
	maxRecord = 140_000
	// MaxInSync bounds the replicas. More would tell no successor more.
	MaxInSync = 8
	usedSize  = 16 + 3*8 + 1
)

// recordVersion is the first byte of a record with more than holders. Versions that know those alone
// take them for unknown.
const recordVersion = 3

// risenVersion is the first byte of a record that begins with the coordinator's epoch.
const risenVersion = 4

// Encode returns the record as bytes: those of the holders, where it has nothing else. Of a record that is too
// large it leaves out what is left of the buckets, which replicas know as well, and if that is not enough, who
// the holders are.
func (r *Record) Encode() []byte {
	b := r.encode()
	if len(b) > maxRecord {
		b = (&Record{Epoch: r.Epoch, Holders: r.Holders, InSync: r.InSync}).encode()
	}
	if len(b) > maxRecord {
		b = (&Record{Epoch: r.Epoch, Holders: holding.Holders{Unknown: true}, InSync: r.InSync}).encode()
	}
	return b
}

func (r *Record) encode() []byte {
	if r.Epoch != 0 {
		rest := *r
		rest.Epoch = 0
		return append(binary.BigEndian.AppendUint64([]byte{risenVersion}, r.Epoch), rest.encode()...)
	}
	holders := r.Holders.Encode()
	if r.Used == nil && len(r.InSync.Replicas) == 0 {
		return holders
	}
	b := binary.BigEndian.AppendUint32([]byte{recordVersion}, uint32(len(holders)))
	b = append(b, holders...)
	b = binary.BigEndian.AppendUint64(b, r.InSync.Epoch)
	b = append(b, byte(len(r.InSync.Replicas)))
	for _, id := range r.InSync.Replicas {
		b = binary.BigEndian.AppendUint64(b, id)
	}
	if r.Used == nil {
		return b
	}
	b = binary.BigEndian.AppendUint64(b, uint64(r.Used.others))
	for id, one := range r.Used.of {
		b = append(b, id[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(one.tokens))
		b = binary.BigEndian.AppendUint64(b, uint64(one.age))
		b = binary.BigEndian.AppendUint64(b, uint64(one.fills))
		b = append(b, one.flags())
	}
	return b
}

const (
	heldFlag = 1 << iota
	leasedFlag
)

func (b *usedBucket) flags() (f byte) {
	if b.held {
		f |= heldFlag
	}
	if b.leased {
		f |= leasedFlag
	}
	return f
}

var errRecord = errors.New("lease: the record of the former coordinator cannot be read: it is of another version, or damaged")

// DecodeRecord reads what [Record.Encode] returned. Where it cannot, the holders are unknown, and the
// error says so.
func DecodeRecord(b []byte) (Record, error) {
	unknown := Record{Holders: holding.Holders{Unknown: true}}
	if len(b) > 9 && b[0] == risenVersion && b[9] != risenVersion {
		r, err := DecodeRecord(b[9:])
		r.Epoch = binary.BigEndian.Uint64(b[1:])
		return r, err
	}
	if len(b) == 0 || b[0] != recordVersion {
		h, err := holding.DecodeHolders(b)
		return Record{Holders: h}, err
	}
	if len(b) < 5 {
		return unknown, errRecord
	}
	n := uint64(binary.BigEndian.Uint32(b[1:]))
	if b = b[5:]; uint64(len(b)) < n+9 {
		return unknown, errRecord
	}
	holders, err := holding.DecodeHolders(b[:n])
	if err != nil {
		return unknown, err
	}
	r := Record{Holders: holders, InSync: InSync{Epoch: binary.BigEndian.Uint64(b[n:])}}
	replicas := int(b[n+8])
	if b = b[n+9:]; replicas > MaxInSync || len(b) < 8*replicas {
		return unknown, errRecord
	}
	for range replicas {
		r.InSync.Replicas = append(r.InSync.Replicas, binary.BigEndian.Uint64(b))
		b = b[8:]
	}
	if len(b) == 0 {
		return r, nil
	}
	if r.Used = decodeUsed(b); r.Used == nil {
		return unknown, errRecord
	}
	return r, nil
}

// decodeUsed returns nil for what cannot be read.
func decodeUsed(b []byte) *Used {
	if len(b) < 8 || (len(b)-8)%usedSize != 0 {
		return nil
	}
	u := &Used{others: time.Duration(binary.BigEndian.Uint64(b)), of: map[BucketID]usedBucket{}}
	if u.others > MaxAge {
		return nil
	}
	for b = b[8:]; len(b) > 0; b = b[usedSize:] {
		one := usedBucket{
			tokens: fixed.Amount(binary.BigEndian.Uint64(b[16:])), age: time.Duration(binary.BigEndian.Uint64(b[24:])),
			fills: time.Duration(binary.BigEndian.Uint64(b[32:])), held: b[40]&heldFlag != 0, leased: b[40]&leasedFlag != 0,
		}
		if one.age < 0 || one.age > MaxAge || one.fills < 0 || one.tokens > fixed.MaxAmount || one.tokens < -fixed.MaxAmount {
			return nil
		}
		u.of[BucketID(b[:16])] = one
	}
	return u
}
