// Package split keeps a limit that a known number of instances have divided among them
// beforehand. Each decides alone: no coordinator, no store, no message, and together they
// never exceed the limit.
//
//	l, err := split.New(split.Terms{
//		Total: limit.PerSecond(10_000),
//		Part:  split.Instance(3, 96), // the fourth of 96
//	}, split.Options{})
//	...
//	err = l.Wait(ctx) // then call the API that the limit is of
//
// The total, the number of instances and the weights come from whoever knows them, a
// configuration service or a list of members, and change while the limiter runs:
// [Limiter.SetTotal], [Limiter.SetInstances], [Limiter.SetWeights], or [Limiter.Set] for all at
// once and for a moment to come.
//
// # How it stays true
//
// The tokens of the whole limit are numbered from the Unix epoch on, token c being due at
// c divided by the rate, and each number belongs to one instance. So what all instances
// admit together within any interval of length T is at most
//
//	rate x T + burst, rounded up
//
// A limit below the number of instances, or one that it does not divide, needs no special
// care: whole tokens go round. At 10 per second among 96 an instance has a token every
// 9.6 seconds.
//
// Clocks need not agree. A clock that is off moves an instance's tokens as a whole, and
// the sum is at most one token for each such instance above. The wall clock is read for the
// phase alone: the monotonic clock carries it on, and a step of the wall clock, of whatever
// size, is followed by at most one part in a thousand.
//
// # Windows
//
// With [Options.Window] the permits of a window are there from its beginning, and lapse at
// its end, as in a counter that is set back at each second of the wall clock. [Options.Pacing]
// spreads them: [Even] admits each when it is due, [PID] by what the windows before looked
// like. A window then has at most what is due in it, but an interval as long as a window
// may have twice that, and as much more as clocks are apart. Without windows, the default,
// there is no such edge.
//
// # What it does not do
//
// A split limit does not follow the load: what one instance leaves unused no other has.
// Where that matters, use package client, whose leases move. And since a part is small,
// so is what can be taken at once: see [Terms.Burst].
package split
