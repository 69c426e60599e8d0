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

	// useTolerance and useGrowth are for Utilisation: when more than nine tenths of the
	// held rate is used, the instance may want more, and asks for twice as much.
	useTolerance = 0.1
	useGrowth    = 2.0

	// maxDemands bounds a report, so that its size is bounded; the rest follows at once.
	maxDemands = 1000
)
