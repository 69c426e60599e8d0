// Package crossings finds out when a key crosses a threshold of a limit, and notes it once for each window and key,
// whichever of the servers that share a store has found it: beyond the soft threshold, used up, the first refusal,
// and under a threshold again.
//
// A [Watcher] looks at how a key stands after a request. Below the thresholds that is a comparison. Above them it
// looks up whether it has noted that already, and otherwise has [Watcher.Run] note it in the [Book]: one record
// per key has what happened in its last windows and the events that nobody has delivered yet. The record changes by
// compare-and-swap, so each event is in it once, in the order of the key.
//
// What is seen is how a key stands, not how it changed: a crossing that is missed, because the process was killed
// or the store did not answer, is found with the next request of the key in the same window.
//
// It decides nothing, sends nothing, and knows neither HTTP nor the files of limits.
package crossings
