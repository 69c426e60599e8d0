package fleet

import (
	"math"
	"testing"
	"time"
)

const (
	ms  = int64(time.Millisecond)
	sec = int64(time.Second)
)

// evenly is a run of a limit of 100/s and a burst of 10, admitted at a steady pace from
// one second to another, with as much refused.
func evenly(from, to int64, perSecond float64) *Log {
	r := &Record{Refused: map[int64]int64{}}
	for i := 0; ; i++ {
		t := from + int64(float64(i)/perSecond*float64(sec))
		if t >= to {
			return &Log{Limits: map[string]*Record{"l": r}}
		}
		r.Admitted = append(r.Admitted, Admission{t, t + ms})
		r.Refused[t/int64(Bin)]++
	}
}

func TestMeasures(t *testing.T) {
	// Two halves of the limit, then after 10 s nothing for 300 ms, and all of it.
	r := Gather([]*Log{evenly(0, 10*sec, 50), evenly(10*ms, 10*sec, 50), evenly(10300*ms, 20*sec, 100)}, "l", 100, 10, false)
	if made, admitted := r.Requests(); made != 2*admitted || admitted != 1970 {
		t.Errorf("%d made, %d admitted", made, admitted)
	}
	near := func(name string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 0.0101 {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	near("use", r.Use(0, 10*sec), 1)
	near("use with the gap", r.Use(10*sec, 20*sec), 0.97)
	near("pace", r.Pace(11*sec, 20*sec), 1)
	near("pause", r.Pause(9*sec, 20*sec).Seconds(), 0.31)
	near("peak", r.Peak(time.Second), 100.0/110)
	if at, ok := r.T95(10*sec, 20*sec, time.Second); !ok || at < 240*time.Millisecond || at > 260*time.Millisecond {
		t.Errorf("t95 is %v, %v: a window that begins 250 ms later misses 50 ms", at, ok)
	}
	if at, ok := r.T95(10*sec, 20*sec, 100*time.Millisecond); !ok || at < 280*time.Millisecond || at > 300*time.Millisecond {
		t.Errorf("fine t95 is %v, %v", at, ok)
	}
	if _, ok := r.T95(10*sec, 21*sec, time.Second); !ok {
		t.Error("where nothing is asked nothing is missing")
	}
	if r.Over() != 0 || r.SurelyOver() != 0 {
		t.Errorf("over by %v, surely %v", r.Over(), r.SurelyOver())
	}
	if (&Run{}).Over() != 0 || (&Run{}).Peak(time.Second) != 0 || (&Run{}).Pace(0, sec) != 0 || (&Run{}).Pause(0, sec) != time.Second {
		t.Error("a run without requests has figures")
	}
}

// Twelve at once of a burst of ten are two too many; if they may have been 20 ms apart,
// in which two tokens come, it is not sure.
func TestOver(t *testing.T) {
	for _, c := range []struct {
		apart        int64
		recorded     float64
		surely       float64
		within, span int
	}{{0, 2, 2, 12, 0}, {20 * ms, 2, 0, 12, 0}, {10 * ms, 2, 1, 12, 0}} {
		rec := &Record{}
		for range 12 {
			rec.Admitted = append(rec.Admitted, Admission{5*sec - c.apart, 5 * sec})
		}
		r := Gather([]*Log{{Limits: map[string]*Record{"l": rec}}}, "l", 100, 10, true)
		if over, surely := r.Over(), r.SurelyOver(); math.Abs(over-c.recorded) > 1e-9 || math.Abs(surely-c.surely) > 1e-9 {
			t.Errorf("asked within %d ms: over by %v, surely by %v", c.apart/ms, over, surely)
		}
		if from, to, within := r.Worst(); from != 5*sec || to != 5*sec || len(within) != 12 {
			t.Errorf("the worst interval is from %d to %d with %d", from, to, len(within))
		}
	}
	// A limit of nothing admits nothing.
	rec := &Record{Admitted: []Admission{{sec, sec}}}
	r := Gather([]*Log{{Limits: map[string]*Record{"l": rec}}}, "l", 0, 0, true)
	if r.Over() != 1 || r.SurelyOver() != 1 {
		t.Errorf("one of nothing is over by %v", r.Over())
	}
}

func TestT95NeverReached(t *testing.T) {
	half := evenly(0, 10*sec, 50)
	if _, ok := Gather([]*Log{half}, "l", 100, 10, false).T95(0, 10*sec, time.Second); ok {
		t.Error("half of the limit is enough, while as much is refused")
	}
	clear(half.Limits["l"].Refused)
	if at, ok := Gather([]*Log{half}, "l", 100, 10, false).T95(0, 10*sec, time.Second); !ok || at != 0 {
		t.Errorf("%v, %v, where all was admitted that was asked for", at, ok)
	}
}
