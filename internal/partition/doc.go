// Package partition divides a limit among instances beforehand: each instance owns every N-th
// token of a common numbering by time, so that no message is needed and the sum stays within the
// limit if the clocks agree. Times are nanoseconds since the Unix epoch. Package split adds
// waiting and a clock. It does not follow the demand: what an instance does not use is lost.
package partition
