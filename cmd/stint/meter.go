package main

import (
	"io"
	"sync/atomic"
)

// meter counts bytes.
type meter struct{ atomic.Int64 }

// metered counts what is read.
type metered struct {
	io.ReadCloser
	meter *meter
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	m.meter.Add(int64(n))
	return n, err
}
