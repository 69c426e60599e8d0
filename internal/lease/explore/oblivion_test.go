package explore

// oblivionScenarios are those in which processes end before they have taken over, and in which the register loses
// records.
func oblivionScenarios() []Scenario {
	return []Scenario{
		{"elected: processes end or fail before they have taken over", from(four, even, budget{stops: 2, crashes: 1, cuts: 1}, halves), false},
		{"elected, with a replica: the same", from(uneven, even, budget{stops: 2, crashes: 1, follows: 1, leaves: 1}, known), false},
		{"given up: a leader died, and its successor ended before it had taken over", from(four, even, budget{cuts: 1, repeats: 1}, givenUp), false},
		{"given up, handed over: a leader resigned, the next one died, and its successor ended", from(modest, even, budget{cuts: 1, stops: 1}, givenUpAfterHandOver), false},
		{"given up, with a replica: the successor failed, and was elected again", from(uneven, even, budget{cuts: 1, asks: 1}, failed), false},
		{"lost: the register loses its record", from(four, slowLeader, budget{oblivions: 1, crashes: 1, outages: 1, pauses: 1}, remembering(halves)), false},
		{"lost, cut off: the same, and the leader does not reach it", from(four, even, budget{cuts: 1, crashes: 1}, lostAndCutOff), false},
		{"lost, going on: the leader goes on where it does not reach it", from(four, slowInstances, budget{moments: 1, cuts: 1}, goingOn), false},
		{"gone back: the register has the record of a leader that had resigned", from(four, even, budget{oblivions: 1, crashes: 1, outages: 1, leaves: 1}, remembering(resignedOnce)), false},
		{"gone back, cut off: the same, and the leader does not reach it", from(four, even, budget{cuts: 1, crashes: 1}, goneBack), false},
		{"gone back, twice: the same, and the successor died before it had published anything", from(four, even, budget{cuts: 1}, goneBackTwice), false},
		{"gone back, and all processes begin anew, one of them with its state folder", from(four, even, budget{cuts: 1, crashes: 1}, begunAnew), false},
		{"gone back, within a term: the register does not have the first holder any more", from(four, even, budget{cuts: 1, crashes: 1}, goneBackWithin), false},
		{"gone back, any moment: the register goes back within a term", from(uneven, even, budget{oblivions: 1, keeps: 1, crashes: 1, follows: 1, asks: 1}, remembering(lentToOne)), false},
		{"forgets: a register that forgets, and state folders that are put back", from(uneven, even, budget{oblivions: 1, keeps: 1, crashes: 1, copies: 1, leaves: 1}, forgetful(lentToOne)), false},
		{"forgets, planned ends: the same", from(uneven, even, budget{oblivions: 1, keeps: 1, crashes: 1, leaves: 2, stops: 1}, forgetful(nothing)), false},
		{"forgets, resigned: it has an earlier resignation when all leases have ended", from(uneven, even, budget{cuts: 1, copies: 1}, forgotResigned), false},
		{"forgets, copied: the same, and a process begins with an old copy of its state folder", from(uneven, even, budget{cuts: 1}, forgotCopied), false},
	}
}

// remembering has processes with state folders.
func remembering(script func(*play)) func(*play) {
	return func(p *play) {
		p.folders = true
		script(p)
	}
}

// forgetful has a register that forgets, and processes with state folders.
func forgetful(script func(*play)) func(*play) {
	return func(p *play) {
		p.forgets, p.folders = true, true
		script(p)
	}
}

// givenUp: the instances still have leases of the first leader.
func givenUp(p *play) {
	halves(p)
	p.do(crash << 1)
	p.await(1)
	p.do(win<<1|1, quit<<1|1, crash<<1|1, elect<<1)
}

// givenUpAfterHandOver: the record still has what was left when the first leader resigned.
func givenUpAfterHandOver(p *play) {
	lentToOne(p)
	p.do(resign<<1, elect<<1|1, connect<<1)
	p.quick(0)
	p.drain(all)
	p.do(crash<<1 | 1)
	p.await(0)
	p.do(win<<1, quit<<1, elect<<1|1)
}

// failed: what the process knows as a replica is of the term before the one that it gave up.
func failed(p *play) {
	lentToOne(p)
	p.replicate()
	p.do(renew<<1, crash<<1)
	p.await(1)
	p.do(win<<1|1, quit<<1|1, elect<<1|1)
}

// lostAndCutOff: the other process follows the term that it knows.
func lostAndCutOff(p *play) {
	remembering(newcomer)(p)
	p.do(apart<<1, lose<<1)
	p.lead(1)
}

// goingOn: the first instance had all, and renewed its lease for as long as the former leader led. The other one
// waits for the successor to know that it has ended.
func goingOn(p *play) {
	newcomer(p)
	p.do(apart<<1, lose<<1)
	for p.err == nil && (p.processes[0].term != 0 || p.processes[1].term == 0) {
		if p.processes[1].term == 0 && p.electable(p.World, 1) <= p.now {
			p.do(elect<<1 | 1)
		}
		p.do(pass << 1)
		p.quick(0)
	}
	p.do(connect<<1 | 1)
	for begun := p.now; p.err == nil && p.now < begun+17*grid; {
		p.do(pass << 1)
		p.quick(1)
	}
}

// resignedOnce: the first process led, lent nothing, and resigned. The other one has lent all to one instance since.
func resignedOnce(p *play) {
	p.do(elect<<1, resign<<1, keep<<1, elect<<1|1)
	newcomer(p)
}

// goneBack: the record says that the first leader resigned, and the leader does not write it again.
func goneBack(p *play) {
	remembering(resignedOnce)(p)
	p.do(apart<<1|1, goBack<<1)
	p.lead(0)
}

// goneBackWithin: the leader does not write the record again.
func goneBackWithin(p *play) {
	p.do(elect<<1, keep<<1)
	newcomer(p)
	p.do(apart<<1, goBack<<1)
	p.lead(1)
}

// goneBackTwice: what the record hands on is of the first term.
func goneBackTwice(p *play) {
	goneBack(p)
	p.do(apart<<1|1, crash<<1)
	p.lead(1)
}

// begunAnew: the one with a state folder from the last term is elected.
func begunAnew(p *play) {
	remembering(resignedOnce)(p)
	p.do(goBack<<1, crash<<1|1, crash<<1)
	p.lead(1)
}

// spent: the leader has lent all of the bucket, and does nothing from then on. The instance spends it at the end of
// its lease.
func (p *play) spent() {
	p.do(connect << 1)
	p.until(func() bool {
		return p.fleet.spendable(p.instances[0].machine, p.local(p.World, 0)).tokens > 6 && p.quiet()
	}, connect<<1|1)
	p.do(cut<<1, seconds<<1, take<<1)
	for p.err == nil && !p.ended(p.World) {
		p.do(second << 1)
	}
}

func forgotResigned(p *play) {
	p.forgets = true
	p.lead(0)
	p.do(resign<<1, keep<<1, elect<<1|1)
	p.spent()
	p.do(goBack<<1, crash<<1, crash<<1|1)
	p.lead(0)
}

// forgotCopied: the folder is of the term before the one that resigned.
func forgotCopied(p *play) {
	p.forgets, p.folders = true, true
	p.lead(1)
	p.do(resign<<1|1, crash<<1|1)
	p.lead(0)
	p.do(resign<<1, keep<<1, elect<<1|1)
	p.spent()
	p.do(crash<<1, goBack<<1, restore<<1|1)
	p.lead(1)
}
