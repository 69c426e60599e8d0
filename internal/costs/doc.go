// Package costs predicts what a request will cost in CPU time, and finds out what it did cost.
//
//   - [Estimator] keeps a running quantile for each signature (method, route, declared keys) from
//     requests that finished.
//   - [Usage] and [Capacity] reduce several resources to one cost by the dominant share.
//   - [Meter] divides the CPU time of the process between the requests in flight, for servers
//     whose handlers do not say what they used.
//
// It does not queue, admit or settle: that is the owner's, who compares a prediction with the
// actual cost. It starts no goroutine. Reports of other servers are read by its room orca.
package costs
