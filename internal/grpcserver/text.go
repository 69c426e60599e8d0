package grpcserver

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// codec is gRPC's own, but for messages of Envoy whose texts are not UTF-8. Envoy sends what is in header fields as it
// is, and what it does with an error is to let the request through, or to open its stream of quotas again: a client
// could escape its limit by a byte. So each such byte becomes U+FFFD and its number, which keeps two texts two.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

// reports is the message that may be larger than [MaxMessage].
const reports = "envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports"

// Unmarshal implements [encoding.CodecV2].
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if data.Len() > MaxMessage {
		if m, ok := v.(protobuf.Message); !ok || m.ProtoReflect().Descriptor().FullName() != reports {
			return fmt.Errorf("%s (%d vs. %d)", tooLarge, data.Len(), MaxMessage)
		}
	}
	err := c.CodecV2.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	m, ok := v.(protobuf.Message)
	if !ok || !strings.HasPrefix(string(m.ProtoReflect().Descriptor().FullName()), "envoy.") {
		return err
	}
	mended, ok := mendTexts(nil, data.Materialize(), m.ProtoReflect().Descriptor(), mostNested)
	if !ok {
		return err // it is malformed, and not for its texts alone
	}
	return c.CodecV2.Unmarshal(mem.BufferSlice{mem.SliceBuffer(mended)}, v)
}

// mostNested is how deep messages are looked into. Not less: a descriptor is three deep.
const mostNested = 16

// mendTexts appends the message in src with its texts made UTF-8; false = it is no message.
func mendTexts(dst, src []byte, of protoreflect.MessageDescriptor, nested int) ([]byte, bool) {
	if nested == 0 {
		return nil, false
	}
	for len(src) > 0 {
		number, kind, n := protowire.ConsumeTag(src)
		if n < 0 {
			return nil, false
		}
		size := protowire.ConsumeFieldValue(number, kind, src[n:])
		if size < 0 {
			return nil, false
		}
		field := of.Fields().ByNumber(number)
		if field == nil || kind != protowire.BytesType || field.Kind() != protoreflect.StringKind && field.Kind() != protoreflect.MessageKind {
			dst, src = append(dst, src[:n+size]...), src[n+size:]
			continue
		}
		dst = append(dst, src[:n]...)
		value, _ := protowire.ConsumeBytes(src[n:])
		if field.Kind() == protoreflect.StringKind {
			value = mendText(value)
		} else {
			inside, ok := mendTexts(nil, value, field.Message(), nested-1)
			if !ok {
				return nil, false
			}
			value = inside
		}
		dst, src = protowire.AppendBytes(dst, value), src[n+size:]
	}
	return dst, true
}

// mendText returns text as UTF-8.
func mendText(text []byte) []byte {
	if utf8.Valid(text) {
		return text
	}
	var out []byte
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		if r == utf8.RuneError && n == 1 {
			out = fmt.Appendf(out, "\uFFFD%02X", text[0])
		} else {
			out = append(out, text[:n]...)
		}
		text = text[n:]
	}
	return out
}
