package redis

import "github.com/stint-io/stint/limit"

// replay decides the operations again from the states before, with package limit's arithmetic:
// the script returns states, not verdicts, which keeps it small. Tests prove that the two agree;
// here the number of admitted requests is compared.
func (b *batch) replay(now limit.Time, admitted int64, findings []finding) error {
	for i := range b.scalars {
		k := &b.buckets[i]
		if k.state = k.rule.decode(k.raw); b.back > 0 && !k.stepped {
			before := k.state
			k.rule.setBack(&k.state, now, b.back)
			k.stepped = k.state != before
		}
	}
	for _, o := range b.ops {
		switch o.verb {
		case verbTake, verbPeek:
			findings = b.decide(o, now, findings)
			if o.allowed {
				admitted--
			}
		case verbRefund:
			for i := range o.parts {
				if k := &b.buckets[o.in[i]]; k.rule.kind.scalar() && !k.rule.gone(&k.state, o.parts[i].taken) && !k.rule.outside(&k.state) {
					k.rule.refund(&k.state, now, o.parts[i].cost)
					k.taken, k.refused = true, false
				}
			}
		case verbSettle:
			for i := range o.parts {
				if k := &b.buckets[o.in[i]]; k.rule.kind.scalar() {
					k.rule.settle(&k.state, now, o.parts[i].cost, o.owed, o.parts[i].terms.counts)
					k.taken, k.refused = true, false
				}
			}
		case verbReset:
			for i := range o.parts {
				k := &b.buckets[o.in[i]]
				k.state, k.taken, k.refused = state{}, true, false
			}
		}
	}
	if admitted != 0 || len(findings) != 0 {
		return errDisagree
	}
	return nil
}

// decide decides one Take or Peek. It returns the findings that are left.
func (b *batch) decide(o *operation, now limit.Time, findings []finding) []finding {
	if len(o.parts) == 1 && o.verb == verbTake && !o.once && !o.split && o.in[0] < b.scalars {
		b.decideOne(&o.parts[0], &b.buckets[o.in[0]], now)
		o.allowed = o.parts[0].verdict.Allowed || o.parts[0].shadow
		return findings
	}
	o.allowed = true
	all := findings
	next := 0 // finding of the next part that has one
	for i := range o.parts {
		p, k := &o.parts[i], &b.buckets[o.in[i]]
		if o.in[i] < b.scalars {
			p.stand = k.rule.peek(k.state, now, 0, p.terms)
			p.verdict = k.rule.peek(k.state, now, p.cost, p.terms)
		} else if next < len(all) {
			p.verdict = all[next].verdict(p.rule, now, p.cost)
			p.stand = p.verdict
			next++
		} else {
			p.verdict = limit.Verdict{} // the answer is too short; replay says so
			next++
		}
		p.taken = int64(now) / 1000
		o.allowed = o.allowed && (p.verdict.Allowed || p.shadow)
	}
	repeated := o.repeated()
	for i := range o.parts {
		p, k := &o.parts[i], &b.buckets[o.in[i]]
		if o.in[i] < b.scalars {
			b.settle(o, p, k, now, repeated)
			if p.rule.policy.Ban > 0 {
				p.banEnds(k, now)
			}
		} else if o.allowed && p.verdict.Allowed && p.cost > 0 {
			p.stand.Remaining += p.cost
		}
		roundUp(&p.verdict)
		roundUp(&p.stand)
	}
	return all[min(next, len(all)):]
}

// decideOne decides a Take from one scalar bucket.
func (b *batch) decideOne(p *part, k *bucket, now limit.Time) {
	if p.cost == 0 {
		p.verdict = k.rule.peek(k.state, now, 0, p.terms)
	} else {
		p.verdict = k.rule.take(&k.state, now, p.cost, p.terms)
		k.taken = true
		k.refused = !p.verdict.Allowed && p.verdict.Reason != limit.ReasonCost
	}
	if p.rule.policy.Ban > 0 {
		p.banEnds(k, now)
	}
	roundUp(&p.verdict)
}

// settle charges a scalar bucket, or lets it refuse unless the Take is repeated, and completes the verdict.
func (b *batch) settle(o *operation, p *part, k *bucket, now limit.Time, repeated bool) {
	if p.cost > 0 && o.verb == verbTake && !repeated {
		k.taken = true
		if o.allowed && p.verdict.Allowed {
			p.verdict = k.rule.take(&k.state, now, p.cost, p.terms)
			k.refused = false
			return
		}
		k.rule.refuse(&k.state, now, p.cost, p.terms)
		k.refused = !p.verdict.Allowed && p.verdict.Reason != limit.ReasonCost
		p.stand = k.rule.peek(k.state, now, 0, p.terms)
	}
	switch {
	case o.allowed && p.verdict.Allowed || p.cost == 0:
	case p.verdict.Allowed:
		untouched(&p.verdict, p.stand)
	default:
		if after := k.rule.peek(k.state, now, p.cost, p.terms); !after.Allowed {
			p.verdict = after
		}
	}
}
