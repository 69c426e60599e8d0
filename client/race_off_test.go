//go:build !race

package client_test

// overhead is how much more things may cost than without the race detector.
const overhead = 1
