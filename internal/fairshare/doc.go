// Package fairshare divides an amount among instances by their demands, weights and priority
// bands. Each allocator is a function of all demands to all targets, in millionths; the sum of
// targets is at most the amount that is divided, to the millionth. The coordinator calls it with
// what it can lend, and moves leases towards the targets. It knows no leases, no time and no
// messages.
package fairshare
