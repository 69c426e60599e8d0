// Package durable keeps counters in this process and, of limits with long windows, in a file as well, so that
// a month's count outlives a restart, a deploy and a crash.
//
// Decisions are those of package memory, which has all states. What has changed is written behind the
// decision, all of it in one transaction, several times in each [Options.Bound]: a crash loses at most the
// counts of that much time. When the disk is slower than that, Takes wait until it has caught up, so that the
// bound holds. With a Bound of 0 each Take returns when its count is on the disk.
//
// [Records] are in the same file and the same transactions. They are written behind a Swap in the same way.
//
// The file is one of bbolt (go.etcd.io/bbolt). One process has it open at a time.
package durable
