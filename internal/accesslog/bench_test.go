package accesslog

import (
	"strings"
	"testing"
)

func BenchmarkParse(b *testing.B) {
	for _, c := range []struct{ name, line string }{{"combined", `192.0.2.7 - frank [10/Oct/2026:13:55:36 -0700] "GET /api/orders?id=7 HTTP/1.1" 200 2326 "-" "curl/8.0"`}, {"envoy", strings.Replace(envoyLine, `\u0022`, "", 1)}} {
		b.Run(c.name, func(b *testing.B) {
			f, err := ParseFormat(Auto, c.line)
			if err != nil {
				b.Fatal(err)
			}
			want := []string{"ip", "method", "path"}
			p, err := f.Parser(Want{Attributes: want})
			if err != nil {
				b.Fatal(err)
			}
			l := Line{Values: make([]string, len(want))}
			b.SetBytes(int64(len(c.line)))
			b.ReportAllocs()
			for b.Loop() {
				if err := p.Parse(c.line, &l); err != nil || l.Values[1] == "" {
					b.Fatal(err, l)
				}
			}
		})
	}
}
