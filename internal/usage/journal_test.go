package usage

import (
	"fmt"
	"slices"
	"testing"
)

// sample is the file of a table with 50 keys, as a kill leaves it.
func sample(f *testing.F) []byte {
	b := journalHeader(495_000, newOrigin())
	for i := range 50 {
		e := (&slot{limit: "limit", subject: fmt.Sprint("customer=c", i), start: int64(i)}).entry()
		e[0] = byte(len(e))
		e[8] = byte(i)
		b = append(b, e...)
	}
	t, damaged, err := parseJournal(b)
	if err != nil || damaged || len(t.slots) != 50 || t.slots[49].n.taken.Load() != 49 {
		f.Fatal(t, damaged, err)
	}
	return append(b, make([]byte, 100)...)
}

// Whatever became of a file, what is read has passed its sum, and nothing crashes.
func FuzzJournal(f *testing.F) {
	whole := sample(f)
	f.Add(whole, 0, byte(0))
	f.Add(whole[:100], 8, byte(1))
	f.Add(whole, 64, byte(0x80))
	f.Add(whole, 200, byte(0xff))
	f.Add([]byte(nil), 0, byte(0))
	f.Fuzz(func(t *testing.T, file []byte, at int, flip byte) {
		if len(file) > 0 {
			file = slices.Clone(file)
			file[max(at, 0)%len(file)] ^= flip
		}
		table, _, err := parseJournal(file)
		if err != nil || table == nil {
			return
		}
		for _, s := range table.slots {
			name, subject, start, kind, ok := cutMark(markKey(s, markTaken, table.origin))
			if s.start >= 0 && s.start < 1e11 && (!ok || name != s.limit || subject != s.subject || start != s.start || kind != markTaken) {
				t.Fatalf("%q", markKey(s, markTaken, table.origin))
			}
		}
	})
}
