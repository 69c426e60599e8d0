package grpcserver

import (
	"bytes"
	"testing"
	"unicode/utf8"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func encoded(t testing.TB, value string) []byte {
	t.Helper()
	// § is what becomes two bytes that are not UTF-8.
	b, err := protobuf.Marshal(&pb.RateLimitRequest{Domain: "d", HitsAddend: 7, Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "user", Value: value}, {Key: "other", Value: "ü"}}, HitsAddend: wrapperspb.UInt64(3)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(b, []byte("§"), []byte{0xff, 0xfe})
}

// TestTexts: bytes that are not UTF-8 are made text, what is beside them stays, and two texts stay two.
func TestTexts(t *testing.T) {
	seen := map[string]bool{}
	for value, want := range map[string]string{"a§b": "a\uFFFDFF\uFFFDFEb", "a§": "a\uFFFDFF\uFFFDFE", "§§": "\uFFFDFF\uFFFDFE\uFFFDFF\uFFFDFE", "plain": "plain"} {
		m := new(pb.RateLimitRequest)
		if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded(t, value))}, m); err != nil {
			t.Fatal(err)
		}
		d := m.Descriptors[0]
		if got := d.Entries[0].Value; got != want || seen[got] {
			t.Errorf("%q is %q, want %q", value, got, want)
		}
		seen[d.Entries[0].Value] = true
		if m.Domain != "d" || m.HitsAddend != 7 || d.Entries[1].Value != "ü" || d.HitsAddend.Value != 3 {
			t.Errorf("%v", m)
		}
	}
	if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer("\x0a\x02\xff\xfe")}, new(wrapperspb.StringValue)); err == nil {
		t.Error("a message that is not Envoy's was mended")
	}
}

// FuzzTexts: whatever comes, what is taken has valid texts, and what gRPC's own codec takes is the same.
func FuzzTexts(f *testing.F) {
	f.Add(encoded(f, "a§b"))
	f.Add(encoded(f, "plain"))
	f.Fuzz(func(t *testing.T, src []byte) {
		plain, m := new(pb.RateLimitRequest), new(pb.RateLimitRequest)
		before := bytes.Clone(src)
		err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(src)}, m)
		if !bytes.Equal(src, before) {
			t.Error("the message was changed")
		}
		if protobuf.Unmarshal(src, plain) == nil && (err != nil || !protobuf.Equal(plain, m)) {
			t.Errorf("%v: %v, want %v", err, m, plain)
		}
		if err != nil {
			return
		}
		for _, d := range m.Descriptors {
			for _, e := range d.Entries {
				if !utf8.ValidString(e.Key) || !utf8.ValidString(e.Value) {
					t.Errorf("%q=%q", e.Key, e.Value)
				}
			}
		}
	})
}
