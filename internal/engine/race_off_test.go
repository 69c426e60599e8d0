//go:build !race

package engine_test

const poolSlack = 0
