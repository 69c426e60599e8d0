// Package crossings finds out when a key crosses a threshold of a limit, and notes it once for each window and key,
// whichever of the servers that share a store has found it: beyond the soft threshold, used up, the first refusal,
// and under a threshold again.
//
// A [Watcher] looks at how a key stands after a request. Below the thresholds that is a comparison. Above them it
// looks up whether it has noted that already, and otherwise has [Watcher.Run] note it in the key's record, which has
// what happened in the key's last windows. The record changes by compare-and-swap, so each event is noted by one
// watcher, which calls [Options].Noted.
//
// What is seen is how a key stands, not how it changed: a crossing that is missed, because the process was killed
// or the store did not answer, is found with the next request of the key in the same window. An event that is noted is
// lost if the process is killed before Noted returns.
//
// It decides nothing, sends nothing, and knows neither HTTP nor the files of limits.
package crossings
