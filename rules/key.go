package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strconv"
	"strings"
)

// A key has one part per attribute. The first byte of a part says what follows: 0 to 128 is the
// length of a literal value; the tags are listed below. Parts are self-delimiting, so the
// encoding is injective.
const (
	// maxLiteral is the length in bytes up to which a value is kept as it is. Not larger:
	// clients choose values, and every key is held in memory. Not smaller: tokens and e-mail
	// addresses should stay readable.
	maxLiteral = 128

	tagIPv6    = 0xfc // a 16-byte network follows
	tagIPv4    = 0xfd // a 4-byte address follows
	tagMissing = 0xfe // the request has no such attribute
	tagHashed  = 0xff // the 32-byte SHA-256 of a longer value follows
)

// appendPart appends the encoding of a value. It does not allocate when dst has
// room for the value itself and 1 byte more.
func appendPart(dst []byte, value string) []byte {
	if len(value) <= maxLiteral {
		return append(append(dst, byte(len(value))), value...)
	}
	at := len(dst)
	dst = append(dst, value...)
	sum := sha256.Sum256(dst[at:])
	return append(append(dst[:at], tagHashed), sum[:]...)
}

// appendAddress appends an address; a value that is no address is appended as text.
func appendAddress(dst []byte, value string, ipv6 int) []byte {
	addr, _, ok := parseAddress(value)
	if !ok {
		return appendPart(dst, value)
	}
	if addr.Is4() {
		a := addr.As4()
		return append(append(dst, tagIPv4), a[:]...)
	}
	a := addr.As16()
	for i := ipv6; i < 128; i++ {
		if i%8 == 0 {
			clear(a[i/8:])
			break
		}
		a[i/8] &^= 0x80 >> (i % 8)
	}
	return append(append(dst, tagIPv6), a[:]...)
}

// appendKey appends the key of the limit's bucket. missing reports that the
// request lacks an attribute of it, or has an empty one.
func (l *Limit) appendKey(dst []byte, s *subject) (key []byte, missing bool) {
	return l.appendParts(dst, l.Key, s)
}

// appendParts appends the values of the attributes called names. missing is as for appendKey.
func (l *Limit) appendParts(dst []byte, names []string, s *subject) (key []byte, missing bool) {
	for _, name := range names {
		value, ok := s.get(name)
		if !ok || name == userIPAttribute && len(l.users) > 0 {
			value, ok = l.client(s, name)
		}
		if l.cut && len(value) > maxLiteral {
			value = value[:maxLiteral]
		}
		switch {
		case !ok || value == "":
			dst, missing = append(dst, tagMissing), true
		case name == ipAttribute, name == userIPAttribute, name == xffAttribute:
			dst = appendAddress(dst, value, l.ipv6)
		default:
			dst = appendPart(dst, value)
		}
	}
	return dst, missing
}

// KeyText writes a key from [Matched] for people, such as `ip=192.0.2.7
// user="u1"`; a hashed value is shown as the beginning of its hash. Keys hold
// what clients sent: the text belongs in answers to an operator, not in metrics.
func (l *Limit) KeyText(key []byte) string {
	var b strings.Builder
	for i := 0; len(key) > 0; i++ {
		value, size := keyPart(key)
		if size == 0 {
			return b.String() + "(not a key of this limit)"
		}
		switch tag := key[0]; {
		case tag == tagMissing:
			value = "(missing)"
		case tag == tagHashed:
			value = "sha256:" + value
		case tag == tagIPv6 && l.ipv6 < 128:
			value += "/" + strconv.Itoa(l.ipv6)
		case tag <= maxLiteral:
			value = strconv.Quote(value)
		}
		name, rest := "", key[size:]
		if l.Envoy {
			// Envoy's keys hold the entry's key and its value in turn.
			if i%2 == 0 {
				b.WriteString(strings.Trim(value, `"`) + "=")
			} else {
				b.WriteString(value + " ")
			}
			key = rest
			continue
		}
		if i < len(l.Key) {
			name = l.Key[i]
		}
		b.WriteString(name + "=" + value + " ")
		key = rest
	}
	return strings.TrimSuffix(b.String(), " ")
}

// keyPart reads the first part of a key: the value as text, the beginning of the hash of a
// hashed value, or nothing for a missing one. The size is 0 for invalid input.
func keyPart(key []byte) (text string, size int) {
	switch tag := key[0]; {
	case tag == tagMissing:
		return "", 1
	case tag == tagHashed && len(key) > 32:
		return hex.EncodeToString(key[1:9]), 33
	case tag == tagIPv4 && len(key) > 4:
		return netip.AddrFrom4([4]byte(key[1:5])).String(), 5
	case tag == tagIPv6 && len(key) > 16:
		return netip.AddrFrom16([16]byte(key[1:17])).String(), 17
	case tag <= maxLiteral && len(key) > int(tag):
		return string(key[1 : 1+tag]), 1 + int(tag)
	}
	return "", 0
}

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// hashName is FNV-1a, 64 bits.
func hashName(name string) uint64 {
	h := uint64(fnvOffset)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * fnvPrime
	}
	return h
}

// permyriad maps a key to 0 to 9999: evenly, the same on every host and after every restart, and
// independently for each limit (by its salt).
func permyriad(salt uint64, key []byte) int {
	h := salt
	for _, c := range key {
		h = (h ^ uint64(c)) * fnvPrime
	}
	// FNV's high bits move little for short keys; these steps (the finish of
	// MurmurHash3) spread them.
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return int(h % 10000)
}
