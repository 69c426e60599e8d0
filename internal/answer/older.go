package answer

import (
	"github.com/stint-io/stint/limit"
)

// older writes the fields of a version that tells of one limit only: the tightest whose store answered. Where it is not
// known when there is more, as of permits in flight, nothing is told of it: these versions want a time.
func (f *fields) older(d *limit.Decision, version Draft) {
	r := tightest(d)
	known := r != nil && shown(r) && ResetAfter(r) != limit.Never
	if version == Draft03 {
		if known {
			f.count(r.Quota)
			f.policies(d)
			f.end(fieldLimit)
		}
	} else {
		f.policies(d)
		f.end(fieldOnePolicies)
	}
	if !known {
		return
	}
	remaining, after := min(max(r.Remaining, 0), r.Quota), max(seconds(ResetAfter(r)), 0)
	if version == Draft07 {
		f.parameter("limit=", r.Quota)
		f.parameter(", remaining=", remaining)
		f.parameter(", reset=", after)
		f.end(fieldOne)
		return
	}
	if version == Draft06 {
		f.count(r.Quota)
		f.end(fieldLimit)
	}
	f.count(remaining)
	f.end(fieldRemaining)
	f.count(after)
	f.end(fieldReset)
}

// count writes a number of at least 0 that a structured field can have.
func (f *fields) count(v int64) { f.number(min(max(v, 0), maxInteger)) }

// policies writes what limits admit in which time, at most maxMembers of them.
func (f *fields) policies(d *limit.Decision) {
	n := 0
	for i := range d.Results {
		r := &d.Results[i]
		if !shown(r) || r.Window <= 0 || n == maxMembers {
			continue
		}
		n++
		f.comma()
		f.count(r.Quota)
		f.parameter(";w=", seconds(r.Window))
	}
}
