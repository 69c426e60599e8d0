package coordinator

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// TestTokensFromNowhere: an instance that gives back tokens which it was never lent, and
// which cannot have come with its rate, gives back none.
func TestTokensFromNowhere(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(100))
	d.report(bert, asks(100))
	// Anna has spent all, and gives back an empty half of the bucket.
	d.report(anna, d.holds(anna, 1, 100, capacity(50, 50, 0)))
	if got := d.lent(bert); got != capacity(50, 50, 0) {
		t.Fatalf("bert holds %+v", got)
	}
	level := d.tokensGiven()
	d.report(bert, d.holds(bert, 2, 0, capacity(0, 50, 50)))
	// 5 ms of his rate may have come, and 7 ms of what he does not hold.
	if got := d.tokensGiven() - level; got > 2*fixed.Token {
		t.Errorf("bert gave back a bucket that he said was full, and was lent empty a moment ago: so %v tokens are there again", got)
	}
}

// TestTokensOfTheRate: what came with the rate can be given back, as far as it was held.
func TestTokensOfTheRate(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(100))
	d.report(bert, asks(100))
	d.report(anna, d.holds(anna, 1, 100, capacity(50, 50, 0)))
	d.report(bert, d.holds(bert, 2, 100, lease.Capacity{}))
	d.pass(600*time.Millisecond, anna, bert)
	level := d.tokensGiven()
	d.report(bert, d.holds(bert, 2, 0, capacity(50, 50, 30)))
	if got := d.tokensGiven() - level; got < 30*fixed.Token || got > 32*fixed.Token {
		t.Errorf("of 50/s held for 0.6 s bert gave back 30 tokens: %v are there", got)
	}
}

// tokensGiven is how many tokens the coordinator has, and has lent so far.
func (d *desk) tokensGiven() fixed.Amount {
	r := d.c.list[0]
	sum := r.Pool.Level
	for _, a := range r.accounts {
		sum += a.Granted.Tokens
	}
	return sum
}
