package admin

import "github.com/prometheus/client_golang/prometheus"

// CountsFile is what the file with the counts of long windows looks like.
type CountsFile struct {
	Bytes            int64
	Writes, Failures uint64  // transactions
	Behind           float64 // seconds since the last write that has succeeded began
	Waits            uint64  // decisions that have waited for the disk
	Bound            float64 // seconds of counting that a crash loses at most
}

// fileDescs describe the metrics of that file. They are sent only where there is one.
type fileDescs struct{ bytes, writes, failures, behind, waits, bound *prometheus.Desc }

func newFileDescs(desc func(name, help string, labels ...string) *prometheus.Desc) fileDescs {
	return fileDescs{
		bytes:    desc("counts_file_bytes", "Size of the file with the counts of long windows."),
		writes:   desc("counts_file_writes_total", "Writes of what has changed."),
		failures: desc("counts_file_write_failures_total", "Of these, those that failed."),
		behind:   desc("counts_file_behind_seconds", "How long ago the last write began that has succeeded."),
		waits:    desc("counts_file_waits_total", "Decisions that have waited for the disk."),
		bound:    desc("counts_file_bound_seconds", "How much counting a crash loses at most."),
	}
}

func (d *fileDescs) describe(ch chan<- *prometheus.Desc) {
	for _, one := range []*prometheus.Desc{d.bytes, d.writes, d.failures, d.behind, d.waits, d.bound} {
		ch <- one
	}
}

func (d *fileDescs) collect(to metrics, f *CountsFile) {
	to.gauge(d.bytes, float64(f.Bytes))
	to.count(d.writes, f.Writes)
	to.count(d.failures, f.Failures)
	to.gauge(d.behind, f.Behind)
	to.count(d.waits, f.Waits)
	to.gauge(d.bound, f.Bound)
}
