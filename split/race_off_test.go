//go:build !race

package split_test

const racing = false
