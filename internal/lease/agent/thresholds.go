package agent

import "time"

// The thresholds and times of an agent. Those that its coordinator relies on too are in
// package lease.
const (
	// minSampleGap is between two samples of a bucket that is in use, maxSampleGap between
	// those of one that is quiet. A sample costs a fraction of a microsecond. Not longer:
	// capacity stays for that long where it is not needed. Not shorter: a change of demand
	// within less cannot be measured.
	minSampleGap = 10 * time.Millisecond
	maxSampleGap = 160 * time.Millisecond
	// loneRequests is how many requests after a silence are too few to measure a rate by, and maxLoneGap
	// between the samples then: a server has a hundred thousand keys, and most are asked for once.
	loneRequests = 2
	maxLoneGap   = 4 * maxSampleGap

	// confirmWithin is how soon a grant is acknowledged if there is nothing else to report.
	confirmWithin = 100 * time.Millisecond
	// contendedGap is between reports that move a few tokens while all is lent. Not shorter:
	// they would cost more than they bring.
	contendedGap = 250 * time.Millisecond
	// maxAskGap is between reports that ask for more and get nothing.
	maxAskGap = time.Second

	// unknownTripRetry is after how long a report is sent again while the round trip is not
	// known, and minRetry after how long at least when it is.
	unknownTripRetry = 300 * time.Millisecond
	minRetry         = 20 * time.Millisecond
	// maxRetryDoublings bounds how often that time doubles: to 64 times.
	maxRetryDoublings = 6

	// minTrip is the least round trip that shortfalls are computed with: it covers what a
	// coordinator takes to gather reports before it answers.
	minTrip = 5 * time.Millisecond
	// maxTokenWait is how long a token is kept at most for the next request that is
	// expected. Not longer: it is missing elsewhere.
	maxTokenWait = 4 * time.Second

	// By how much a value must differ from the one that was sent, as a fraction (1/n), before
	// it is reported. Each is a message, and the coordinator may answer by moving capacity.
	//
	// demandChanged, 1/8, is reported at once: measured demand varies by less with a few
	// dozen requests in a measurement. exactDemandChanged, 1/32, holds for demand that is
	// declared or follows from use, which has no noise of measurement. demandDrifted, 1/100,
	// is reported after driftGap where the limit is contended, so that no smaller error
	// stays for ever.
	demandChanged      = 8
	exactDemandChanged = 32
	demandDrifted      = 100
	driftGap           = time.Second
	// fairShareMet: an instance whose rate is below its demand by more than 1/16 at a
	// saturated limit asks for no tokens on top of it.
	fairShareMet = 16
	// smallDecrease and giveBackFloor are fractions of the limit's rate: a decrease of demand
	// below 1/1024 of it is reported after contendedGap, and less than 1/256 of it is not
	// given back: it is not worth two messages.
	smallDecrease = 1024
	giveBackFloor = 256

	// useTolerance and useGrowth are for Utilisation: when more than nine tenths of the
	// held rate is used, the instance may want more, and asks for twice as much.
	useTolerance = 0.1
	useGrowth    = 2.0

	// maxDemands bounds a report, so that its size is bounded; the rest follows at once.
	maxDemands = 1000
)
