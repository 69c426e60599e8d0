// Package sim runs whole fleets of limiters under virtual time: a discrete-event loop
// over the machines that ship (packages internal/lease/agent and internal/lease/coordinator), a network that delays, loses,
// doubles and parts, clocks that are set wrong, processes that pause and crash. It is
// deterministic: the same scenario and seed give the same result to the last request.
//
// Published systems stand beside ours as baselines written from their descriptions,
// so that all are measured by one recorder in one harness. A baseline is a model of
// what was described, never the product itself.
package sim
