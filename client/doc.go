// Package client spends leases: a limit that many processes share, decided in each of
// them without a network round trip, and never over in all of them together.
//
//	c, err := client.New(client.Options{Address: "127.0.0.1:8081"})
//	...
//	go c.Run(ctx)
//	messages, err := c.Limit("messages.maxRate", client.LimitOptions{})
//	if messages.Allow() { ... }
//
// A client has two halves. The upper one is what the application calls: a token
// bucket at the leased rate, and a line of those who wait. It takes no lock of the
// network's half, and Allow costs tens of nanoseconds. The lower one is a goroutine,
// within [Client.Run], that reports the demand, and puts in force what the coordinator
// grants.
//
// It does not decide how a limit is divided: the coordinator does. It keeps no limit
// that the coordinator does not know.
package client
