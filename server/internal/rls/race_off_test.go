//go:build !race

package rls

const poolSlack = 0
