// Package demand estimates how much an instance is asked for, in tokens per second.
//
// [Meter] measures the rate of arrivals from a running total, and finds changes of that rate;
// [WantedByUse] estimates demand where only what was admitted is known; [MovingAverage] is the
// mean over a window of intervals. They are arithmetic on a small state, with the time as a
// parameter, and know neither buckets nor leases. The agent samples a bucket and feeds them; the
// coordinator averages the attempts of a limit shared by suppression.
package demand
