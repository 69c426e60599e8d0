package leasewire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// The bounds of a key. Not larger: every key is held in memory by the coordinator.
// Not smaller: a token in full should fit.
const (
	MaxKeyValues = 16
	MaxKeyBytes  = 1024 // of an encoded key
	// MaxMemberKey is longer, since a server's own keys have a tag and a length for each value.
	MaxMemberKey = 4096
)

// memberKey begins a key as the members of a cluster encode it. No key that EncodeKey returns
// begins so: a length of 127 and more there is followed by a byte below 0x80.
const memberKey = "\xff\xff"

// MemberKey returns the key of a [lease.ResourceID] for a key as the members of a cluster encode it.
func MemberKey(encoded string) string { return memberKey + encoded }

// FromMemberKey returns what MemberKey was given; ok is false for other keys.
func FromMemberKey(key string) (encoded string, ok bool) { return strings.CutPrefix(key, memberKey) }

// ErrKey is wrapped by the errors about keys.
var ErrKey = errors.New("not a key")

// EncodeKey returns the values of a limit's key as one string for
// [lease.ResourceID]. The encoding is injective: every value stands behind its length.
// No values are the empty string, the key of a limit without key.
func EncodeKey(values ...string) (string, error) {
	size := 0
	for _, v := range values {
		size += len(v) + 2
	}
	key, err := AppendKey(make([]byte, 0, size), values...)
	return string(key), err
}

// AppendKey appends to dst, which is empty, what [EncodeKey] returns; after an error it
// returns nil. It allocates nothing if dst has room.
func AppendKey(dst []byte, values ...string) ([]byte, error) {
	if len(values) > MaxKeyValues {
		return nil, fmt.Errorf("leasewire: %d values are %w: use at most %d", len(values), ErrKey, MaxKeyValues)
	}
	for _, v := range values {
		dst = append(binary.AppendUvarint(dst, uint64(len(v))), v...)
	}
	if len(dst) > MaxKeyBytes {
		return nil, fmt.Errorf("leasewire: values of %d bytes are %w: use at most %d, or a hash of the long ones", len(dst), ErrKey, MaxKeyBytes)
	}
	return dst, nil
}

// DecodeKey returns the values that EncodeKey was given. Whatever EncodeKey does not
// return is refused, so two different keys never mean the same values.
func DecodeKey(key string) ([]string, error) {
	if len(key) > MaxKeyBytes {
		return nil, fmt.Errorf("leasewire: %d bytes are %w: at most %d", len(key), ErrKey, MaxKeyBytes)
	}
	var values []string
	for rest := key; rest != ""; {
		n, size := binary.Uvarint([]byte(rest[:min(len(rest), binary.MaxVarintLen64)]))
		shortest := size == 1 || size == 2 && n >= 0x80
		if !shortest || n > uint64(len(rest)-size) || len(values) == MaxKeyValues {
			return nil, fmt.Errorf("leasewire: %.64q is %w: want what EncodeKey returns", key, ErrKey)
		}
		values = append(values, rest[size:size+int(n)])
		rest = rest[size+int(n):]
	}
	return values, nil
}
