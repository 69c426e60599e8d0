// Package overload runs servers that are asked for more than they can do, under virtual time: a
// discrete-event loop over cores, run queues, graphs of services, networks, clients that give up
// and try again. Stint's policy in it is the machine that ships (package internal/admission),
// with the client throttle that ships (package internal/accepts) where it is asked for.
// It is deterministic: the same scenario and seed give the same result to the last request.
//
// Published systems stand beside ours as baselines written from their descriptions, so that all
// are measured by one recorder in one harness. A baseline is a model of what was described, never
// the product itself.
package overload
