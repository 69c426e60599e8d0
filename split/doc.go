// Package split enforces a limit that is divided beforehand among a known number of instances.
// Each decides alone: no coordinator, no store, no message, and together they never exceed the
// limit.
//
//	l, err := split.New(split.Terms{
//		Total: limit.PerSecond(10_000),
//		Part:  split.Instance(3, 96), // the fourth of 96
//	}, split.Options{})
//	...
//	err = l.Wait(ctx) // then call the API that the limit is of
//
// The total, the number of instances and the weights come from outside, such as a configuration
// service or a list of members, and may change while the limiter runs: [Limiter.SetTotal],
// [Limiter.SetInstances], [Limiter.SetWeights], or [Limiter.Set] for all together and for a
// later time.
//
// # How it stays true
//
// The tokens of the whole limit are numbered from the Unix epoch on, token c being due at
// c divided by the rate, and each number belongs to one instance. So what all instances
// admit together within any interval of length T is at most
//
//	rate x T + burst, rounded up
//
// A limit below the number of instances, or one that it does not divide, is no special case:
// whole tokens go to one instance after the other. At 10 per second among 96, an instance has a
// token every 9.6 seconds.
//
// Clocks need not agree. A clock error moves an instance's tokens as a whole, and the sum is
// above the bound by at most one token for each such instance. The wall clock is read for the
// phase alone: the monotonic clock carries it on, and a step of the wall clock, of whatever
// size, is followed at a rate of at most 1 ms per second.
//
// # Windows
//
// With [Options.Window] the permits of a window are available from its beginning and expire at
// its end, as with a counter that is reset at each second of the wall clock. [Options.Pacing]
// spreads them: [Even] admits each when it is due, [PID] by how the windows before were used. A
// window then admits at most what is due in it, but an interval as long as a window may have
// twice that, and more by the error of the clocks. Without windows, the default, there is no
// such edge.
//
// # What it does not do
//
// A split limit does not follow the demand: no instance can use what another leaves unused.
// Where that matters, use package client, whose leases move. And since a part is small, so is
// its burst: see [Terms.Burst].
package split
