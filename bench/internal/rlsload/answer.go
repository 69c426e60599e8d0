package rlsload

import (
	"google.golang.org/protobuf/encoding/protowire"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// Answer is what the load looks at in a RateLimitResponse.
type Answer struct {
	Code      rls.RateLimitResponse_Code // overall
	Statuses  int                        // one for each descriptor
	OK        int                        // statuses with code OK and a current limit
	Remaining uint64                     // of the last status
}

// ReadAnswer reads an encoded RateLimitResponse without allocating. It reports
// false for bytes that are not one.
func ReadAnswer(b []byte) (a Answer, ok bool) {
	ok = fields(b, func(n protowire.Number, number uint64, message []byte) bool {
		switch {
		case n == 1 && message == nil:
			a.Code = rls.RateLimitResponse_Code(number)
		case n == 2 && message != nil:
			a.Statuses++
			code, limited, remaining, ok := readStatus(message)
			if !ok {
				return false
			}
			if code == rls.RateLimitResponse_OK && limited {
				a.OK++
			}
			a.Remaining = remaining
		}
		return true
	})
	return a, ok
}

func readStatus(b []byte) (code rls.RateLimitResponse_Code, limited bool, remaining uint64, ok bool) {
	ok = fields(b, func(n protowire.Number, number uint64, message []byte) bool {
		switch {
		case n == 1 && message == nil:
			code = rls.RateLimitResponse_Code(number)
		case n == 2 && message != nil:
			limited = true
		case n == 3 && message == nil:
			remaining = number
		}
		return true
	})
	return code, limited, remaining, ok
}

// fields calls each for every varint (message nil) and every length-delimited
// field (message not nil) of an encoded message.
func fields(b []byte, each func(n protowire.Number, number uint64, message []byte) bool) bool {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return false
		}
		b = b[size:]
		good := true
		switch kind {
		case protowire.VarintType:
			var v uint64
			v, size = protowire.ConsumeVarint(b)
			good = size >= 0 && each(n, v, nil)
		case protowire.BytesType:
			var m []byte
			m, size = protowire.ConsumeBytes(b)
			good = size >= 0 && each(n, 0, m[:len(m):len(m)])
		default:
			size = protowire.ConsumeFieldValue(n, kind, b)
			good = size >= 0
		}
		if !good {
			return false
		}
		b = b[size:]
	}
	return true
}
