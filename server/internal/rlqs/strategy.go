package rlqs

import (
	"github.com/stint-io/stint/internal/fixed"
)

// rule is what an assignment says.
type rule uint8

const (
	ruleNone   rule = iota // there is no assignment
	ruleAllow              // everything
	ruleDeny               // nothing
	ruleTokens             // a token bucket
)

// strategy is a rule with the token bucket of Envoy's message: MaxTokens, filled by Tokens each
// Interval seconds. Envoy fills continuously.
type strategy struct {
	rule      rule
	MaxTokens uint32
	Tokens    uint32
	Interval  int64
}

// minTokens is how many tokens a fill has at least, so that a rate is rounded down by at most a
// thousandth. Envoy takes whole tokens and whole seconds.
const minTokens = 1000

// maxInterval is the longest interval in seconds, a year. Envoy fills no slower than a token a year.
const maxInterval = 365 * 24 * 60 * 60

// bucketOf returns the token bucket of at most a rate, and of a size in whole tokens. The rate is
// rounded down. former is the one that Envoy has: Envoy takes two that differ in the seconds of their
// interval alone for the same, so those never follow each other.
func bucketOf(rate fixed.Amount, size int64, former strategy) strategy {
	size = min(size, 1<<32-1)
	if rate <= 0 && size <= 0 {
		return strategy{rule: ruleDeny}
	}
	s := strategy{rule: ruleTokens, MaxTokens: uint32(max(1, size)), Interval: 1}
	for s.Interval < maxInterval && rate*fixed.Amount(s.Interval) < minTokens*fixed.Token {
		s.Interval = min(2*s.Interval, maxInterval)
	}
	tokens := min(rate, (1<<32-1)*fixed.Token) * fixed.Amount(s.Interval) / fixed.Token
	if s.Tokens = uint32(min(tokens, 1<<32-1)); s.Tokens == 0 {
		// Envoy has no slower bucket: the size is all that it may spend for a year.
		s.Tokens, s.Interval = 1, maxInterval
	}
	if former.rule == ruleTokens && former.MaxTokens == s.MaxTokens && former.Tokens == s.Tokens && former.Interval != s.Interval {
		if s.Tokens > 1 {
			s.Tokens--
		} else {
			s.MaxTokens = max(1, s.MaxTokens-1)
		}
	}
	return s
}

// rate is what the strategy fills in tokens per second.
func (s strategy) rate() fixed.Amount {
	if s.rule != ruleTokens {
		return 0
	}
	return (fixed.Amount(s.Tokens)*fixed.Token + fixed.Amount(s.Interval) - 1) / fixed.Amount(s.Interval)
}

// size is how many tokens it has at most.
func (s strategy) size() fixed.Amount {
	if s.rule != ruleTokens {
		return 0
	}
	return fixed.Whole(int64(s.MaxTokens))
}
