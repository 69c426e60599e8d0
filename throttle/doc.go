// Package throttle protects one server: it runs as many requests as the server can, has the
// others wait in a queue that is bounded by count or by predicted cost, and turns away the least
// important ones.
//
// [Throttle.Start] waits until a request may run and returns a [Work], whose Done ends it. A
// request that is refused, evicted or has waited too long has a [limit.Decision] that says why
// and when to try again. Package throttle limits the load of this process; limits by client,
// shared by many servers, are in packages limit and stint.
package throttle
