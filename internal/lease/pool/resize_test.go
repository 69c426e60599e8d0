package pool

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
)

// What was used of a pool stays used, whatever the burst becomes in between, and a larger
// burst is there at once.
func TestPoolResizes(t *testing.T) {
	p := Pool{Rate: fixed.Token, Burst: 100 * fixed.Token, Level: 70 * fixed.Token}
	for _, step := range []struct{ burst, level fixed.Amount }{
		{10, -20}, {1, -29}, {100, 70}, {200, 170}, {0, -30}, {100, 70},
	} {
		p.Resize(0, step.burst*fixed.Token-p.Burst)
		if p.Level != step.level*fixed.Token {
			t.Errorf("burst %d: level is %v, want %v", step.burst, p.Level, step.level)
		}
	}
	p.Resize(0, -90*fixed.Token)
	p.Refill(p.At.Add(25 * time.Second))
	if p.Level != 5*fixed.Token {
		t.Errorf("25 s at 1/s after a debt of 20: level is %v, want 5", p.Level)
	}
	p.Refill(p.At.Add(time.Minute))
	if p.Resize(0, 90*fixed.Token); p.Level != 100*fixed.Token {
		t.Errorf("all was paid: level is %v, want 100", p.Level)
	}
}
