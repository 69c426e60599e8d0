//go:build race

package split_test

const raceEnabled = true
