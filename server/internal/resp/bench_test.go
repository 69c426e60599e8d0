package resp

import (
	"strings"
	"testing"
)

// again is a client that sends the same for ever.
type again struct {
	text string
	at   int
}

func (a *again) Read(p []byte) (int, error) {
	n := copy(p, a.text[a.at:])
	a.at = (a.at + n) % len(a.text)
	return n, nil
}

// BenchmarkRead reads commands and does nothing with them.
func BenchmarkRead(b *testing.B) {
	from := &again{text: strings.Repeat(array("CL.THROTTLE", "some-key", "100", "1000", "1"), 16)}
	r := &reader{}
	b.ReportAllocs()
	for n := 0; n < b.N; {
		if err := r.fill(from); err != nil {
			b.Fatal(err)
		}
		for {
			if _, err := r.next(); err != nil {
				break
			}
			n++
		}
	}
}

// BenchmarkCommand is a whole command but for the network, on a key of its own and on one that all share.
func BenchmarkCommand(b *testing.B) {
	for _, hot := range []bool{false, true} {
		name := map[bool]string{false: "own", true: "hot"}[hot]
		b.Run(name, func(b *testing.B) {
			s := newServer(b)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				key := "hot"
				if !hot {
					key = b.Name() + string(rune('a'+s.serial.Add(1)%26))
				}
				from := &again{text: strings.Repeat(array("CL.THROTTLE", key, "1000000", "1000000", "1"), 16)}
				c := s.conn(b.Context(), &script{in: from})
				for pb.Next() {
					if err := c.reader.fill(from); err != nil {
						b.Error(err)
					}
					for {
						args, err := c.reader.next()
						if err != nil || !pb.Next() {
							break
						}
						c.command(args)
					}
					c.w.out = c.w.out[:0]
				}
			})
		})
	}
}
