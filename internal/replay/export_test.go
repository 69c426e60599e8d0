package replay

// SetMaxFitted bounds the keys whose bursts are followed, until it is undone.
func SetMaxFitted(n int) (undo func()) {
	was := maxFitted
	maxFitted = n
	return func() { maxFitted = was }
}
