package limit

import (
	"math"
	"sync/atomic"
)

// fastBucket is the state of a Limiter's token bucket while nobody waits: one word that Allow
// changes by compare-and-swap. A goroutine that holds the Limiter's lock has frozen the word and
// keeps the state in the ledger.
type fastBucket struct {
	bucket PackedBucket
	begin  Time // tick 0 of the word
	word   atomic.Uint64

	parked uint64 // under the lock: what the word was when the lock was last given back
}

// wordFrozen is above every state.
const wordFrozen = math.MaxUint64

// allow takes one token at now. decided is false when the caller has to decide under the lock.
func (f *fastBucket) allow(now Time) (allowed, decided bool) {
	moment := now - f.begin
	if moment < 0 || moment > Time(PackedHorizon)/2 {
		return
	}
	tick := f.bucket.Tick(uint64(moment))
	for {
		word := f.word.Load()
		if word == wordFrozen {
			return
		}
		next, fits := f.bucket.TakeOne(word, tick)
		if !fits {
			return false, true
		}
		if f.word.CompareAndSwap(word, next) {
			return true, true
		}
	}
}

// lock locks l, makes a zero value usable and brings the state into the ledger.
func (l *Limiter) lock() {
	l.mu.Lock()
	if !l.ready {
		l.meter, l.ready = newMeter(Policy{}), true
	}
	if f := l.fast.Load(); f != nil {
		if word := f.word.Swap(wordFrozen); word != wordFrozen {
			l.state.bucket = f.bucket.Unpack(word, f.begin)
			l.behind = l.behind || word != f.parked
		}
	}
}

// unlock leaves the state in the fast bucket, if there is one and nobody waits, and starts the
// call-backs of waits that have ended.
func (l *Limiter) unlock() {
	l.release()
	l.calls.Start()
}

// release is unlock without starting the call-backs.
func (l *Limiter) release() {
	if f := l.fast.Load(); f != nil && len(l.slots) == 0 {
		if word, ok := f.ledgerWord(&l.state); ok {
			f.parked = word
			f.word.Store(word)
		}
	}
	l.mu.Unlock()
}

// catchUp brings the ledger's last up to date for a Take at a time of the caller's choice. A
// Take by the word does not record its time. It was at the latest now, or when the bucket was
// full but for one token: a request that is admitted as of then would be admitted now as well.
func (l *Limiter) catchUp() {
	f := l.fast.Load()
	if !l.behind || f == nil {
		return
	}
	l.behind = false
	last := l.now()
	if b := &f.bucket; b.n > 0 {
		full := ticks(l.state.bucket).Minus(b.exact.at(f.begin)).Lo
		last = min(last, f.begin+Time((full-min(full, b.word.Token))/b.n))
	}
	l.state.last = max(l.state.last, last)
}

// quicken gives l a fast bucket that begins at now, if the policy can have one. The old one
// stays frozen.
func (l *Limiter) quicken(now Time) {
	var f *fastBucket
	if p := l.meter.policy; p.Algorithm == TokenBucket && !p.Unlimited && !p.CountRefused && !l.origin.IsZero() {
		if packed, ok := l.meter.bucket.Pack(); ok {
			f = &fastBucket{bucket: packed, begin: now}
			f.word.Store(wordFrozen)
		}
	}
	l.fast.Store(f)
}
