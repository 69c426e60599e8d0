// Package durable keeps counters in this process and, of limits with long windows, in a file as well, so that
// a month's count outlives a restart, a deploy and a crash.
//
// Decisions are those of package memory, which has all states. The states that have changed are appended to the
// file behind the decision, all of them in one batch, several times in each [Options.Bound]: a crash loses at most the
// counts of that much time. When the disk is slower than that, Takes wait until it has caught up, so that the
// bound holds. With Sync each Take returns when its count is on the disk.
//
// [Records] are in the same file and the same batches. They are written behind a Swap in the same way.
//
// A batch counts if all of it is there: each part has a checksum. When the file has grown to a few times of what it
// has, it is written anew beside itself and renamed. A second file, with the suffix .lock, makes sure that one process has it
// open at a time. Files of bbolt, which versions before wrote, are converted when they are opened.
package durable
