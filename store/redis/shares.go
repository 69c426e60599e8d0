package redis

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

var _ store.Shares = (*Store)(nil)

var (
	//go:embed lua/shares.lua
	luaShares    string
	luaSharesSHA = sha(luaShares)
)

// TakeShare implements [store.Shares]. It waits for Redis at most for Options.Timeout.
func (s *Store) TakeShare(ctx context.Context, share *store.Share) error {
	return s.askShare(ctx, "take", share)
}

// PeekShare implements [store.Shares].
func (s *Store) PeekShare(ctx context.Context, share *store.Share) error {
	return s.askShare(ctx, "peek", share)
}

// ReturnShare implements [store.Shares].
func (s *Store) ReturnShare(ctx context.Context, share *store.Share) error {
	return s.askShare(context.WithoutCancel(ctx), "return", share)
}

func (s *Store) askShare(ctx context.Context, verb string, share *store.Share) error {
	if share.Cost < 0 || share.Cost > limit.MaxCount {
		return fmt.Errorf("redis: cost %d is not within 0 and %d", share.Cost, int64(limit.MaxCount))
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("redis: nothing taken: %w", err)
	}
	if s.client.Load() == nil {
		s.awaitContact(ctx)
	}
	head := append([]byte(s.opts.Prefix+formatVersion), "{t:"...)
	head = append(appendEscaped(head, share.Terms.ID, ":"), ':')
	key := string(appendKey(head, share.Key))
	l := s.laneOf(key)
	if err := s.down(l.breaker); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	asked := s.clock()
	answer, err := s.evalShare(within, key, s.shareArgs(verb, share))
	if err != nil {
		if ctx.Err() == nil {
			l.breaker.failed(err, asked, key)
		}
		return fmt.Errorf("redis: %w: %w", store.ErrUnavailable, describe(err, s.opts))
	}
	l.breaker.succeeded(s.clock())
	if verb == "return" {
		return nil
	}
	return readShare(share, answer)
}

// shareArgs are the arguments of the script.
func (s *Store) shareArgs(verb string, share *store.Share) []string {
	now := 0.0
	if s.now != nil {
		now = float64(s.now() / 1000)
	}
	t := share.Terms
	args := []string{
		float(now), verb, float(perMicrosecond(t.Policy.Rate)), float(float64(t.Policy.Burst)), float(float64(share.Cost)),
		string(share.Tenant), float(float64(t.Weight(share.Tenant))), truth(share.CountRefused),
		float(float64(store.ShareHold / time.Microsecond)), strconv.Itoa(store.MaxShareTenants),
	}
	for _, g := range t.Guaranteed {
		args = append(args, g.Tenant, float(perMicrosecond(g.Rate)), float(float64(t.Weight([]byte(g.Tenant)))))
	}
	return args
}

func float(x float64) string { return strconv.FormatFloat(x, 'g', 17, 64) }

func perMicrosecond(r limit.Rate) float64 {
	if r.Count == 0 || r.Period <= 0 {
		return 0
	}
	return float64(r.Count) / (float64(r.Period) / 1000)
}

func (s *Store) evalShare(ctx context.Context, key string, args []string) ([]rueidis.RedisMessage, error) {
	c := *s.client.Load()
	keys := []string{key, key + ":h"}
	r := c.Do(ctx, c.B().Evalsha().Sha1(luaSharesSHA).Numkeys(2).Key(keys...).Arg(args...).Build())
	if err, ok := rueidis.IsRedisErr(r.Error()); ok && err.IsNoScript() {
		r = c.Do(ctx, c.B().Eval().Script(luaShares).Numkeys(2).Key(keys...).Arg(args...).Build())
	}
	return r.ToArray()
}

// readShare reads the answer of the script.
func readShare(to *store.Share, answer []rueidis.RedisMessage) error {
	if len(answer) != 7 {
		return errAnswer
	}
	var n [7]float64
	for i := range answer {
		var err error
		if n[i], err = answer[i].AsFloat64(); err != nil {
			return errAnswer
		}
	}
	to.Rate, to.Tenants, to.Taken = n[4]*1e6, int(n[5]), n[6]
	v := limit.Verdict{Allowed: n[0] == 1, Remaining: int64(min(n[2], float64(limit.MaxCount)))}
	switch {
	case v.Allowed:
	case to.Cost > to.Terms.Policy.Burst:
		v.Reason, v.RetryAfter = limit.ReasonCost, limit.Never
	default:
		v.Reason, v.RetryAfter = limit.ReasonRate, time.Duration(n[3])*time.Microsecond
		if n[1] == 2 {
			v.Reason = limit.ReasonShare
		}
	}
	to.Verdict = v
	return nil
}
