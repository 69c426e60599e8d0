package sim

// doormanLease is what a Doorman server knows of one client.
type doormanLease struct {
	has, wants float64
	subclients float64
}

// doormanGrant is what client i gets of a capacity under the published algorithm.
// others holds the leases of all but i, i's own stored one is old and its request is
// asks. old is nil for a client that is new.
func doormanGrant(kind DoormanKind, capacity float64, others []doormanLease, old *doormanLease, asks doormanLease) float64 {
	sum := doormanLease{}
	for _, o := range others {
		sum.has += o.has
		sum.wants += o.wants
		sum.subclients += o.subclients
	}
	// No client gets what another still holds. The published code lets this fall below
	// zero, which its limiter takes as no limit at all.
	free := max(0, capacity-sum.has)
	if kind == FairShare {
		return min(fairShare(capacity, sum.subclients, others, asks), free)
	}
	count, stored := sum.subclients+asks.subclients, sum.wants
	if old != nil {
		count = sum.subclients + old.subclients
		stored += old.wants
	}
	return min(proportionalShare(capacity, count, stored, others, asks), free)
}

// proportionalShare gives an equal part, and of what others leave of theirs a part in
// proportion to the shortfall. stored is the sum of wants without this request.
func proportionalShare(capacity, count, stored float64, others []doormanLease, asks doormanLease) float64 {
	equal := capacity / count
	mine := equal * asks.subclients
	if stored <= capacity || asks.wants <= mine {
		return asks.wants
	}
	extra, need := 0.0, asks.wants-mine
	for _, o := range others {
		part := equal * o.subclients
		extra += max(0, part-o.wants)
		need += max(0, o.wants-part)
	}
	return mine + (asks.wants-mine)*extra/need
}

// fairShare fills in two rounds; it stops there, and compares what others want with
// the part of the one who asks.
func fairShare(capacity, count float64, others []doormanLease, asks doormanLease) float64 {
	equal := capacity / (count + asks.subclients)
	mine := equal * asks.subclients
	if asks.wants <= mine {
		return asks.wants
	}
	extra, parties := 0.0, asks.subclients
	for _, o := range others {
		switch part := equal * o.subclients; {
		case o.wants < part:
			extra += part - o.wants
		case o.wants > part:
			parties += o.subclients
		}
	}
	mine += extra / parties * asks.subclients
	if asks.wants < mine {
		return asks.wants
	}
	again, parties2 := 0.0, asks.subclients
	for _, o := range others {
		if o.wants <= equal*o.subclients {
			continue
		}
		switch {
		case o.wants < mine:
			again += mine - o.wants
		case o.wants > mine:
			parties2 += o.subclients
		}
	}
	return min(asks.wants, mine+again/parties2*asks.subclients)
}
