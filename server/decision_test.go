package server

import (
	"testing"

	"github.com/stint-io/stint/limit"
)

// BenchmarkDecision is one decision of a server's engine, with and without consumers of its events, below every
// threshold.
//
//	go test ./server -run xxx -bench Decision -benchmem
func BenchmarkDecision(b *testing.B) {
	for _, c := range []struct{ name, file string }{
		{"usage and events", "limits: [{name: month, key: [account], algorithm: fixed_window, rate: 1000G/month, soft: 80%, events: [soft, hard, saturated]}]\n"},
		{"neither", "limits: [{name: month, key: [account], algorithm: fixed_window, rate: 1000G/month, usage: false}]\n"},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := counting(b, Options{}, c.file)
			req := limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: "acme"}}, Cost: 1}
			b.ReportAllocs()
			for b.Loop() {
				if d, err := s.engine.Take(b.Context(), req); err != nil || !d.Allowed {
					b.Fatal(d, err)
				}
			}
			if err := s.close(true); err != nil {
				b.Error(err)
			}
		})
	}
}
