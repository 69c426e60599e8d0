// Package redis keeps the state of limits in Redis or Valkey, where many processes
// share it: on one server, behind Sentinel, or in a Cluster.
//
// One script decides whole batches of requests, at a moment of the server's clock, so clocks of
// processes do not matter, and a request over several limits is decided as one. Requests that
// arrive while a batch is under way make the next batch: each is decided in order and with its
// own cost, and a key costs one call per round trip however many requests there are. The
// script's arithmetic is that of package limit; Bind refuses policies beyond the range in which
// it is exact.
//
// The server expires a key when its bucket is full or its window has ended. Its name is
// injective and has a version and a hash tag:
//
//	stint:1:{b:api-per-user:%02u1}
//
// No request waits for longer than the time-out. When Redis does not answer, each charge is
// decided as its OnFailure says, a breaker keeps further requests from waiting, and a probe asks
// until Redis answers; a server that runs an abandoned call later does not charge it. After the
// loss of a master, what it had not replicated can be admitted once more;
// docs/explanation/failures.md has the bound.
//
// The package will not make Redis' writes durable, nor divide a limit among processes, which
// leases do.
package redis
