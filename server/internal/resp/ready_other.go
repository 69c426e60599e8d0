//go:build !linux

package resp

type socket struct{}

func (*socket) write([]byte) int { return 0 }

func (c *conn) runRaw() bool { return false }
