package main

import (
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/picture"
)

// The layout, in pixels.
const (
	width, height            = 840, 300
	left, right, top, bottom = 60, width - 20, 56, height - 36
)

// draw stacks what the processes admitted, below the line of the limit.
func draw(counts [][]int) string {
	var h picture.SVG
	bins := len(counts[0])
	h.Open(width, height, "Six processes share one limit", "What each admitted per second, stacked; the load moves every two seconds.")
	h.Text(left, 24, "title", "start", fmt.Sprintf("Six processes share one limit of %d/s", perSecond))
	h.Text(left, 42, "faint", "start", "each color is a process; the load moves from one to the next every two seconds, and asks for half as much again")
	const most = 1.25 * perSecond
	x := func(at time.Duration) float64 {
		return left + float64(at)/float64(time.Duration(bins)*bin)*(right-left)
	}
	y := func(v float64) float64 { return bottom - v/most*(bottom-top) }
	for v := 0.0; v < most; v += picture.NiceStep(most) {
		fmt.Fprintf(&h, `<path class="grid" d="M%d %sH%d"/>`+"\n", left, picture.Pixel(y(v)), right)
		h.Text(left-6, int(y(v))+4, "faint", "end", picture.Short(v))
	}
	at := make([]time.Duration, bins)
	for i := range at {
		at[i] = time.Duration(i)*bin + bin/2
	}
	low := make([]float64, bins)
	for i, one := range counts {
		high := make([]float64, bins)
		for k, n := range smooth(one) {
			high[k] = low[k] + n
		}
		fmt.Fprintf(&h, `<path class="area" fill="%s" d="`, picture.Colours[i])
		h.Line(at, high, x, y, false)
		h.Line(at, low, x, y, true)
		h.WriteString(`Z"/>` + "\n")
		low = high
	}
	fmt.Fprintf(&h, `<path class="admitted" d="`)
	h.Line(at, low, x, y, false)
	h.WriteString(`"/>` + "\n")
	fmt.Fprintf(&h, `<path class="limit" d="M%d %sH%d"/>`+"\n", left, picture.Pixel(y(perSecond)), right)
	for s := time.Duration(0); s <= time.Duration(bins)*bin; s += 2 * time.Second {
		h.Text(int(x(s)), bottom+18, "faint", "middle", fmt.Sprintf("%.0f s", s.Seconds()))
	}
	h.WriteString("</svg>\n")
	return h.String()
}

// smooth returns rates per second, each over three bins.
func smooth(counts []int) []float64 {
	out := make([]float64, len(counts))
	for i := range counts {
		sum, n := 0, 0
		for k := max(0, i-1); k <= min(len(counts)-1, i+1); k++ {
			sum, n = sum+counts[k], n+1
		}
		out[i] = float64(sum) / float64(n) / bin.Seconds()
	}
	return out
}
