package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// lagSample is how many messages of each partition were not delivered at a time.
type lagSample struct {
	at  time.Duration
	lag []int
}

// result is what the subscriber saw of a run.
type result struct {
	settings
	from, to time.Duration // while nothing was broken and partition 0 lagged
	arrivals []arrival
	lags     []lagSample
	events   []event
}

// halfSecond is what rates are drawn and compared by.
const halfSecond = 500 * time.Millisecond

// bar draws n as a part of most in a width.
func bar(n, most, width int) string {
	return strings.Repeat("#", min(width, (n*width+most/2)/max(1, most)))
}

// line prints what came in the last second, by worker, and the lag.
func (r *result) line(out io.Writer, all []arrival) {
	s := r.lags[len(r.lags)-1]
	by, total := make([]int, r.Workers), 0
	for i := len(all) - 1; i >= 0 && all[i].at > s.at-time.Second; i-- {
		by[all[i].worker]++
		total++
	}
	fmt.Fprintf(out, "%5.1f s  %4d/s of %d %-20s  by worker %v  lag %v\n", s.at.Seconds(), total, r.Limit, bar(total, r.Limit, 20), by, s.lag)
}

// figures are what a run has shown.
type figures struct {
	Attempts, Refused   int
	Missing, Repeated   int           // messages
	Use                 float64       // attempts of the measured time, as a part of the limit
	Median              float64       // the same of its median half second
	Lagging             float64       // attempts of partition 0 per second of the measured time
	Gain                float64       // Lagging / (limit / workers)
	Burst               float64       // the most beyond rate x T in any window, at the subscriber
	Permitted           float64       // the same by the times at which the limit let them pass
	Transit             time.Duration // the longest from permit to arrival
	Allowed             float64       // burst + rate x Transit + one for each sender
	ByWorker            []int
	Sick, SickPerSecond float64 // seconds, and attempts per second in its last half second
}

func (r *result) figures() figures {
	f := figures{Attempts: len(r.arrivals), ByWorker: make([]int, r.Workers), Burst: largestBurst(r.arrivals, r.Limit)}
	got, within, lagging := map[int]int{}, 0, 0
	slots := make([]int, int((r.to-r.from)/halfSecond)+1)
	for _, a := range r.arrivals {
		f.ByWorker[a.worker]++
		f.Transit = max(f.Transit, a.transit)
		if a.at >= r.from && a.at < r.to {
			within++
			slots[int((a.at-r.from)/halfSecond)]++
			if a.partition == 0 {
				lagging++
			}
		}
		if !a.ok {
			f.Refused++
		} else if got[a.id]++; got[a.id] == 2 {
			f.Repeated++
		}
	}
	f.Missing = r.Messages - len(got)
	permits := slices.Clone(r.arrivals)
	for i := range permits {
		permits[i].at -= permits[i].transit
	}
	slices.SortFunc(permits, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	f.Permitted = largestBurst(permits, r.Limit)
	seconds := (r.to - r.from).Seconds()
	f.Use = float64(within) / seconds / float64(r.Limit)
	if whole := slots[:len(slots)-1]; len(whole) > 0 {
		slices.Sort(whole)
		f.Median = float64(whole[len(whole)/2]) / halfSecond.Seconds() / float64(r.Limit)
	}
	f.Lagging = float64(lagging) / seconds
	f.Gain = f.Lagging * float64(r.Workers) / float64(r.Limit)
	// Attempts that arrive within T were permitted within T + Transit. Besides, each sender may
	// have a permit and not have read the clock yet.
	f.Allowed = float64(r.burst()) + float64(r.Limit)*f.Transit.Seconds() + float64(2*r.Workers*senders)
	f.sick(r)
	return f
}

// sick measures what came when everything had been refused for a second.
func (f *figures) sick(r *result) {
	var from, to time.Duration
	for i, e := range r.events {
		if strings.HasSuffix(e.what, "refuses everything") && i+1 < len(r.events) {
			from, to = e.at, r.events[i+1].at
		}
	}
	n, late := 0, to-halfSecond
	for _, a := range r.arrivals {
		if a.at >= late && a.at < to {
			n++
		}
	}
	f.Sick, f.SickPerSecond = (to - from).Seconds(), 2*float64(n)
}

// print says what was shown.
func (r *result) print(out io.Writer) {
	f := r.figures()
	fmt.Fprintf(out, "\ndelivered by       attempts\n")
	for i, n := range f.ByWorker {
		fmt.Fprintf(out, "  worker-%-2d        %8d %s\n", i+1, n, bar(n, slices.Max(f.ByWorker), 40))
	}
	fmt.Fprintf(out, "messages           %d: %d missing, %d delivered more than once\n", r.Messages, f.Missing, f.Repeated)
	fmt.Fprintf(out, "attempts           %d, of which %d were refused by the subscriber and tried again\n", f.Attempts, f.Refused)
	fmt.Fprintf(out, "while one lagged   %.3f of the limit in all, %.3f in the median half second; the lagging partition at %.0f/s, %.2f x limit/N\n", f.Use, f.Median, f.Lagging, f.Gain)
	fmt.Fprintf(out, "never over         at most %.1f + %d x T permitted in any window T, %.1f + %d x T at the subscriber; the burst is %d\n", f.Permitted, r.Limit, f.Burst, r.Limit, r.burst())
	fmt.Fprintf(out, "                   (the longest way from permit to arrival was %v, by which arrivals may bunch)\n", f.Transit.Round(100*time.Microsecond))
	fmt.Fprintf(out, "while it refused   %.0f/s were still tried at the end of %.1f s\n", f.SickPerSecond, f.Sick)
}

// The chart's size, in pixels.
const (
	chartWidth, chartHeight = 860, 220
	chartLeft, chartTop     = 60, 30
)

var colours = []string{"#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000"}

// svg draws attempts per second by worker against the limit, and below it the lag by
// partition.
func (r *result) svg() []byte {
	var b bytes.Buffer
	end := r.lags[len(r.lags)-1].at
	x := func(at time.Duration) float64 { return chartLeft + chartWidth*at.Seconds()/end.Seconds() }
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n",
		chartLeft+chartWidth+20, 2*(chartHeight+chartTop)+30)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="%d" y="18">attempts per second at the subscriber, by worker; dashed: the limit, %d/s</text>`+"\n", chartLeft, r.Limit)
	r.drawRates(&b, x, end)
	top := 2*chartTop + chartHeight
	fmt.Fprintf(&b, `<text x="%d" y="%d">lag of each partition, in messages (at most %d)</text>`+"\n", chartLeft, top-10, r.Messages)
	for p := range r.lags[0].lag {
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" points="`, colours[p%len(colours)])
		for _, s := range r.lags {
			fmt.Fprintf(&b, "%.1f,%.1f ", x(s.at), float64(top+chartHeight)-chartHeight*float64(s.lag[p])/float64(r.Messages))
		}
		fmt.Fprintln(&b, `"/>`)
	}
	for _, e := range r.events {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#999"><title>%s</title></line>`+"\n", x(e.at), x(e.at), chartTop, top+chartHeight, e.what)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d">0 to %.1f s; the vertical lines are what was done, in order: see the output</text>`+"\n</svg>\n", chartLeft, top+chartHeight+18, end.Seconds())
	return b.Bytes()
}

// drawRates stacks the workers in slots of half a second. The limit is at three quarters.
func (r *result) drawRates(b *bytes.Buffer, x func(time.Duration) float64, end time.Duration) {
	const slot = halfSecond
	counts := make([][]int, int(end/slot)+1)
	for i := range counts {
		counts[i] = make([]int, r.Workers)
	}
	for _, a := range r.arrivals {
		counts[min(int(a.at/slot), len(counts)-1)][a.worker]++
	}
	bottom, scale := float64(chartTop+chartHeight), 0.75*chartHeight/float64(r.Limit)
	for i, by := range counts {
		y, at := bottom, time.Duration(i)*slot
		for w, n := range by {
			h := scale * float64(n) / slot.Seconds()
			y -= h
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`, x(at), y, x(min(at+slot, end))-x(at), h, colours[w%len(colours)])
		}
		fmt.Fprintln(b)
	}
	fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="black" stroke-dasharray="6 4"/>`+"\n", chartLeft, chartLeft+chartWidth, bottom-0.75*chartHeight, bottom-0.75*chartHeight)
}
