package main

import (
	"strings"
	"testing"
)

func TestByteSize(t *testing.T) {
	for in, want := range map[string]int64{
		"65536": 65536, "64KiB": 65536, "65536B": 65536, "512MiB": 512 << 20, "1GiB": 1 << 30, "2TiB": 2 << 40,
		"9223372036854775807": 1<<63 - 1, "8388607TiB": 8388607 << 40,
	} {
		n := int64(7)
		b := byteSize{&n, 64 << 10}
		if err := b.Set(in); err != nil || n != want {
			t.Errorf("%q is %d, %v, want %d", in, n, err, want)
		}
		again := int64(0)
		if err := (byteSize{&again, 0}).Set(b.String()); err != nil || again != want {
			t.Errorf("%q is written as %q, which is %d: %v", in, b.String(), again, err)
		}
	}
	for in, want := range map[string]string{
		"": "no number of bytes", "x": "no number", "1.5GiB": "no number", "-1": "no number", "-1GiB": "no number", "+1GiB": "no number",
		"1GB": "no number", "1G": "no number", "1gib": "no number", "GiB": "no number", "1 GiB": "no number", "0x10000": "no number",
		"0": "below 64KiB", "1": "below 64KiB", "65535": "below 64KiB", "63KiB": "below 64KiB",
		"9223372036854775808": "no number", "8388608TiB": "above 9223372036854775807",
	} {
		n := int64(7)
		if err := (byteSize{&n, 64 << 10}).Set(in); err == nil || !strings.Contains(err.Error(), want) || n != 7 {
			t.Errorf("%q: %v, want %q; it is %d", in, err, want, n)
		}
	}
}
