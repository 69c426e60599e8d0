// Package configstore keeps the versions of a configuration in a [cluster.Register]: what stint config
// pushes, and members follow.
//
// A version is a record config/versions/N that is written once. The record config/head lists the
// versions that are kept, the latest last, and is swapped by its revision: of two pushes at the same
// time one is a [Conflict]. A version that no head lists does not count, such as one whose push was
// interrupted. Its number is not used again, so numbers ascend, with gaps.
//
// Each member reports what it enforces in member/NODE.
//
// It does not know what is in a configuration, and applies none.
package configstore
