package redis

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// A key is
//
//	stint:1:{b:api-per-user:%02u1}
//
// the prefix, the version of the format, and in the braces that make it one slot
// of a Cluster the kind of arithmetic, the limit's ID and the key's values. It is
// injective: an ID has no colon and nothing has a brace, since those are escaped.

// formatVersion changes when states of the format before cannot be read.
const formatVersion = "1:"

// maxKey is the length in bytes up to which the values of a key are kept; longer ones are
// replaced by their SHA-256. Not longer: clients choose header fields, and with them how much
// memory a key takes. Not shorter: people look for keys by hand.
const maxKey = 160

// keyHead is a key up to the values.
func keyHead(prefix string, k kind, id string) string {
	b := append([]byte(prefix+formatVersion), '{', k.letter(), ':')
	return string(append(appendEscaped(b, id, ":"), ':'))
}

// appendKey appends the values of a key, and the closing brace, to its head.
func appendKey(dst []byte, key []byte) []byte {
	if len(key) <= maxKey {
		n := len(dst)
		if dst = appendEscaped(dst, key, "#"); len(dst)-n <= maxKey {
			return append(dst, '}')
		}
		dst = dst[:n]
	}
	sum := sha256.Sum256(key)
	dst = append(dst, '#')
	dst = base64.RawURLEncoding.AppendEncode(dst, sum[:])
	return append(dst, '}')
}

// appendBeside appends a key that stands for key in the slot of the bucket near.
func appendBeside(dst []byte, near string, key []byte) []byte {
	sum := sha256.Sum256(key)
	return base64.RawURLEncoding.AppendEncode(append(append(dst, near...), ':'), sum[:])
}

// appendEscaped appends s with all but plain characters as %XX.
func appendEscaped[T string | []byte](dst []byte, s T, also string) []byte {
	const hex = "0123456789abcdef"
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c <= ' ' || c >= 0x7f || c == '%' || c == '{' || c == '}' || strings.IndexByte(also, c) >= 0 {
			dst = append(dst, '%', hex[c>>4], hex[c&15])
		} else {
			dst = append(dst, c)
		}
	}
	return dst
}

// slots is how many slots a Cluster has.
const slots = 1 << 14

// slot returns the slot of a key of ours in a Cluster: the CRC16 (XMODEM) of what is
// within its braces.
func slot(key string) uint16 {
	if i := strings.IndexByte(key, '{'); i >= 0 {
		key, _, _ = strings.Cut(key[i+1:], "}")
	}
	var crc uint16
	for i := 0; i < len(key); i++ {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^key[i]]
	}
	return crc % slots
}

var crcTable = func() (t [256]uint16) {
	for i := range t {
		c := uint16(i) << 8
		for range 8 {
			if c&0x8000 != 0 {
				c = c<<1 ^ 0x1021
			} else {
				c <<= 1
			}
		}
		t[i] = c
	}
	return t
}()
