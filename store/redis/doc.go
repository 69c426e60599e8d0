// Package redis keeps the state of limits in Redis or Valkey, where many processes
// share it: on one server, behind Sentinel, or in a Cluster.
//
// One script decides whole batches of requests, at a moment of the server's clock, so
// clocks of processes do not matter, and a request over several limits is decided as
// one. While a batch is under way what arrives makes the next: each request is decided
// in its turn and with its own cost, and a key costs one call for each round trip,
// however many ask for it. The script's arithmetic is that of package limit;
// policies beyond the range in which it is exact are refused by Bind.
//
// A key expires by the server when it is as good as new. Its name is injective and has
// a version and a hash tag:
//
//	stint:1:{b:api-per-user:%02u1}
//
// Nothing waits for longer than the time-out. When Redis does not answer, each
// charge is decided as its OnFailure says, a breaker keeps further requests from
// waiting, and a probe looks for Redis; what had been asked in vain is not charged by a
// server that comes to it later. After the loss of a master, what it had not passed
// on to its replica can be admitted once more; docs/explanation/failures.md has the bound.
//
// The package will not make Redis' writes durable, nor divide a limit among
// processes: that is the business of leases.
package redis
