// Package accepts is the client's side of overload control: from what a server accepted it
// concludes how many attempts are worth sending. It is the adaptive throttle of Google's SRE
// book, with the number of attempts as an exact bound in place of a probability.
//
// The book refuses a request locally with the probability
//
//	max(0, (requests - K x accepts) / (requests + 1))
//
// where requests counts what the program wanted to send in the last two minutes, and accepts what
// the server accepted of it. In equilibrium K x accepts attempts are sent. Three things are wrong
// with it as it stands: requests that were refused locally keep it closed for minutes after the
// server has recovered; between two equilibria more is sent than K x accepts; and a program that
// begins with many requests at once is refused before the first answer.
//
// Here each accept pays for K attempts, and each attempt costs one. What is not spent is kept as
// credit for a window, and a closed [Throttle] sends a probe now and then. So
//
//	attempts <= K x accepts + probes + Spare + (in flight when the first refusal came)
//
// from the start to any moment, whatever the server does (TestBoundAtRandom). The last two count
// once for each time that refusals begin after a window without any. Requests that are
// refused locally count for nothing, so a server that accepts again multiplies the attempts by K
// with each round trip. There is no latch: the next probe is never more than 1.5 x Probe away.
// While there is little credit attempts are spaced as the accepts were, K times as close.
//
// All is a function of state, time and a random draw; the caller has the lock and the clock.
package accepts
