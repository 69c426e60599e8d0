package agent

import (
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

var (
	anna     = lease.Member{Instance: "anna", Session: 11}
	theLimit = lease.ResourceID{Limit: "l"}
	hundred  = lease.Terms{Rate: 100 * fixed.Token, Burst: 100 * fixed.Token}
)

// holding is a part of a limit, in tokens.
func holding(rate, burst, tokens float64) lease.Capacity {
	return lease.Capacity{Rate: amount(rate), Burst: amount(burst), Tokens: amount(tokens)}
}

func amount(x float64) fixed.Amount {
	a, err := fixed.AmountOf(x)
	if err != nil {
		panic(err)
	}
	return a
}
