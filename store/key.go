package store

import "encoding/binary"

// AppendKey appends one value of a key to dst, with its length before it, so that
// no two lists of values have the same encoding: ("a_b", "c") and ("a", "b_c")
// never share a bucket.
func AppendKey(dst []byte, value string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(value)))
	return append(dst, value...)
}
