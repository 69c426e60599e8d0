package gcra

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stint-io/stint/internal/seeding"
)

// model is a bucket as a level that fills as time passes, in integers without bounds.
type model struct {
	full, level *big.Int // in ticks
	at          uint64
}

func number(n uint64) *big.Int { return new(big.Int).SetUint64(n) }

// add adds ticks to the level, as far as there is room.
func (m *model) add(ticks *big.Int) {
	if m.level.Add(m.level, ticks); m.level.Cmp(m.full) > 0 {
		m.level.Set(m.full)
	}
}

// fill brings the level up to tick.
func (m *model) fill(tick uint64) {
	m.add(number(tick - m.at))
	m.at = tick
}

func ticksOf(n, token uint64) *big.Int { return new(big.Int).Mul(number(n), number(token)) }

// TestAgainstLevel: whatever is taken, owed and given back, and whenever, a word says what a level says that fills at the
// rate up to the burst: what fits, and what is left.
func TestAgainstLevel(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	taken, refused, refunded, owed := 0, 0, 0, 0
	for seed := range seeding.Draw(t, 2000) {
		r := rand.New(rand.NewPCG(seed, 41))
		token := 1 + r.Uint64N(1<<r.IntN(40))
		b := New(r.Uint64N(Room/token>>r.IntN(20)+1), token)
		m := model{full: ticksOf(b.Quota, token), level: ticksOf(b.Quota, token)}
		var word, tick uint64
		for range 100 {
			tick = min(tick+r.Uint64N(2*b.Full+2)>>r.IntN(64), Room)
			m.fill(tick)
			cost := r.Uint64N(b.Quota>>r.IntN(8) + 2)
			if r.IntN(4) == 0 {
				cost = 1
			}
			costs := ticksOf(cost, token)
			switch r.IntN(6) {
			case 0:
				word = b.Refund(word, cost)
				m.add(costs)
				refunded++
			case 1:
				word = b.Owe(word, tick, cost, 1<<63)
				m.level.Sub(m.level, costs)
				owed++
			default:
				next, fits := b.Take(word, tick, cost)
				if want := costs.Cmp(m.level) <= 0; fits != want {
					t.Fatalf("seed %d: %d of %v ticks fit %+v: %v", seed, cost, m.level, b, fits)
				}
				if one, fitsOne := b.TakeOne(word, tick); cost == 1 && (fitsOne != fits || fits && one != next) {
					t.Fatalf("seed %d: one token is %d, %v, and a cost of 1 is %d, %v", seed, one, fitsOne, next, fits)
				}
				if !fits {
					refused++
					continue
				}
				word = next
				m.level.Sub(m.level, costs)
				taken++
			}
			if want := max(m.level.Sign(), 0); b.Free(word, tick) != new(big.Int).Mul(m.level, number(uint64(want))).Uint64() {
				t.Fatalf("seed %d: %d ticks are left of %+v, want %v", seed, b.Free(word, tick), b, m.level)
			}
			if m.level.Cmp(new(big.Int).Neg(number(1<<60))) < 0 {
				break // a debt that a word does not hold much longer
			}
		}
	}
	if taken < 10_000 || refused < 10_000 || refunded < 10_000 || owed < 10_000 {
		t.Errorf("%d taken, %d refused, %d refunded and %d owed: too tame", taken, refused, refunded, owed)
	}
}

// TestLargeCosts: a cost that is more ticks than a word has does not fit, is owed up to the most that there may be, and fills
// the bucket when it is given back.
func TestLargeCosts(t *testing.T) {
	b := New(1, Room)
	if word := b.Owe(0, 5, 1<<62, 1<<62-1); word != 1<<62-1 {
		t.Errorf("the word is %d, want 2^62-1", word)
	}
	if word, fits := b.Take(7, 9, 8); fits || word != 7 { // 8 times 2^61 is 0 in a word
		t.Errorf("eight tokens of a bucket of one fit: %v, and the word is %d, want 7", fits, word)
	}
	if word := b.Refund(7, 1<<62); word != 0 {
		t.Errorf("more than there can be was given back: the word is %d, want 0", word)
	}
}

// TestBack: a bucket of which something was taken and given back, with others that take from it in between, has what it
// would have without that; no more than that if it would have been full in between, had nobody else taken anything.
func TestBack(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	equal, less := 0, 0
	for seed := range seeding.Draw(t, 5000) {
		r := rand.New(rand.NewPCG(seed, 42))
		b := New(1+r.Uint64N(50), 1+r.Uint64N(1000))
		tick := r.Uint64N(1000)
		before, _ := b.Take(0, tick, r.Uint64N(b.Quota+1))
		at := tick + r.Uint64N(2*b.Full)>>r.IntN(8)
		after, fits := b.Take(before, at, 1+r.Uint64N(b.Quota))
		if !fits {
			continue
		}
		word, without, last := after, before, at
		for range r.IntN(4) {
			last += r.Uint64N(b.Full+1) >> r.IntN(8)
			cost := r.Uint64N(b.Quota + 1)
			next, fits := b.Take(word, last, cost)
			if !fits {
				continue
			}
			word = next
			without, _ = b.Take(without, last, cost)
		}
		got := b.Free(word-min(word, Back(last, before, after, at)), last)
		want := b.Free(without, last)
		if got > want {
			t.Fatalf("seed %d: %d ticks are left, more than %d", seed, got, want)
		}
		switch {
		case got == want:
			equal++
		case last <= max(before, at):
			t.Fatalf("seed %d: %d ticks are left, want %d", seed, got, want)
		default:
			less++
		}
	}
	if equal < 1000 || less < 10 {
		t.Errorf("%d as without it, %d less: too tame", equal, less)
	}
}
