//go:build race

package rls

// poolSlack is how many allocations the race detector may add: it drops what is
// put into a sync.Pool now and then, on purpose.
const poolSlack = 8
