package replay

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/picture"
	"github.com/stint-io/stint/limit"
)

// The layout of a chart, in pixels.
const (
	chartWidth  = 960
	chartLeft   = 70
	chartRight  = chartWidth - 20
	chartHeader = 74
	chartPanel  = 236
	chartPlot   = 150
	chartFooter = 28

	// maxPanels bounds the limits that are drawn: those that refused most.
	maxPanels = 12
)

// panel is the chart of one limit, or of all.
type panel struct {
	title, note string
	series      series
	old         *series // of the configuration to compare with
	rate        float64 // requests per second that the limit admits; 0 = that depends on the key
}

// chart draws a report.
type chart struct {
	picture.SVG
	report *Report
	width  time.Duration // of a slot
	slots  int
}

// WriteChart writes an SVG of what came and what would have been admitted and refused, over the time of the log: for all
// requests, and for the twelve limits that refused most, with their rate where they have one bucket for all.
func (r *Report) WriteChart(w io.Writer, title string) error {
	panels := []panel{{title: fmt.Sprintf("all requests: %d of %d refused (%s)", r.Refused, r.Requests, percent(r.Refused, r.Requests)), series: r.all}}
	if r.Against != nil {
		panels[0].old = &r.Against.all
		panels[0].note = fmt.Sprintf("newly refused: %d; newly admitted: %d; the dashed line is what the other configuration admits", r.Against.NewlyRefused, r.Against.NewlyAdmitted)
	}
	limits := make([]*Limit, 0, len(r.Limits))
	for i := range r.Limits {
		if r.Limits[i].Asked > 0 {
			limits = append(limits, &r.Limits[i])
		}
	}
	slices.SortStableFunc(limits, func(a, b *Limit) int {
		return cmp.Or(cmp.Compare(b.Refused+b.Shadow, a.Refused+a.Shadow), cmp.Compare(b.Asked, a.Asked))
	})
	left := max(len(limits)-maxPanels, 0)
	for _, l := range limits[:len(limits)-left] {
		panels = append(panels, panelOf(l))
	}
	h := &chart{report: r, width: r.width, slots: len(r.all.asked)}
	height := chartHeader + len(panels)*chartPanel + chartFooter
	h.Open(chartWidth, height, title, fmt.Sprintf("%d requests from %s to %s", r.Requests, r.First.Format(time.RFC3339), r.Last.Format(time.RFC3339)))
	h.Text(chartLeft, 26, "title", "start", title)
	x := chartLeft
	for _, l := range []struct{ class, name string }{
		{"demand", "demand"}, {"admitted", "admitted"}, {"refused", "refused"}, {"limit", "limit"},
	} {
		fmt.Fprintf(h, `<line class="%s" x1="%d" y1="48" x2="%d" y2="48"/>`+"\n", l.class, x, x+26)
		h.Text(x+32, 52, "", "start", l.name)
		x += 120
	}
	for i := range panels {
		h.draw(i, &panels[i])
	}
	note := "UTC; a point is the mean of " + h.width.String()
	if left > 0 {
		note += fmt.Sprintf("; %d more limits are not drawn", left)
	}
	h.Text(chartLeft, height-8, "faint", "start", note)
	h.WriteString("</svg>\n")
	_, err := io.WriteString(w, h.String())
	return err
}

func panelOf(l *Limit) panel {
	p := panel{series: l.series}
	p.title = fmt.Sprintf("%s: %d of %d refused (%s)", l.Name, l.Refused, l.Asked, percent(l.Refused, l.Asked))
	if l.Shadow > 0 {
		p.title = fmt.Sprintf("%s: %d of %d over the limit (%s), which refuses none", l.Name, l.Shadow, l.Asked, percent(l.Shadow, l.Asked))
	}
	policy := l.limit.Base.Policy
	rate := policy.Rate
	if len(l.limit.Key) == 0 && !policy.Unlimited && rate.Period > 0 && policy.Algorithm != limit.Concurrency {
		p.rate = float64(rate.Count) / rate.Period.Seconds()
	}
	if len(l.Keys) > 0 && len(l.limit.Key) > 0 {
		p.note = "refused most: "
		for i, k := range l.Keys[:min(3, len(l.Keys))] {
			if i > 0 {
				p.note += ", "
			}
			p.note += fmt.Sprintf("%s %d times", k.Key, k.Refused)
		}
	}
	return p
}

// percent writes a share.
func percent(n, of int64) string {
	if of == 0 {
		return "0 %"
	}
	return fmt.Sprintf("%.3g %%", 100*float64(n)/float64(of))
}

// rates returns counts of slots as requests per second.
func (h *chart) rates(counts func(slot int) int64) []float64 {
	out := make([]float64, h.slots)
	for i := range out {
		length := h.width
		if i == h.slots-1 { // the log may end within the last one
			end := limit.At(h.report.Last) - (h.report.start + limit.Time(i)*limit.Time(h.width))
			length = max(min(length, time.Duration(end)), h.width/4, 1)
		}
		out[i] = float64(counts(i)) / length.Seconds()
	}
	return out
}

func at(list []int64, i int) int64 {
	if i < len(list) {
		return list[i]
	}
	return 0
}

// draw writes the panel of one limit.
func (h *chart) draw(index int, p *panel) {
	base := chartHeader + index*chartPanel
	top := base + 42
	bottom := top + chartPlot
	h.Text(chartLeft, base+14, "system", "start", p.title)
	h.Text(chartLeft, base+32, "faint", "start", p.note)
	h.Text(chartRight, base+14, "faint", "end", "requests/s")
	lines := []struct {
		class  string
		values []float64
	}{
		{"demand", h.rates(func(i int) int64 { return at(p.series.asked, i) })},
		{"refused", h.rates(func(i int) int64 { return at(p.series.refused, i) })},
		{"admitted", h.rates(func(i int) int64 { return at(p.series.admitted, i) })},
	}
	most := 0.0
	for _, v := range lines[0].values {
		most = max(most, v)
	}
	switch {
	case p.old != nil && p.old.asked != nil && h.report.Against.width == h.width:
		lines = append(lines, struct {
			class  string
			values []float64
		}{"limit", h.rates(func(i int) int64 { return at(p.old.admitted, i) })})
	case p.rate > 0 && p.rate <= 3*most:
		level := make([]float64, h.slots)
		for i := range level {
			level[i] = p.rate
		}
		most = max(most, p.rate)
		lines = append(lines, struct {
			class  string
			values []float64
		}{"limit", level})
	}
	scale := most * 1.05
	if scale <= 0 {
		scale = 1
	}
	y := func(v float64) float64 { return float64(bottom) - v/scale*chartPlot }
	whole := max(time.Duration(h.slots)*h.width, 1)
	x := func(d time.Duration) float64 { return chartLeft + float64(d)/float64(whole)*(chartRight-chartLeft) }
	step := picture.NiceStep(scale)
	for k := 0; float64(k)*step <= scale; k++ {
		v := float64(k) * step
		fmt.Fprintf(h, `<line class="grid" x1="%d" y1="%s" x2="%d" y2="%s"/>`+"\n", chartLeft, picture.Pixel(y(v)), chartRight, picture.Pixel(y(v)))
		h.Text(chartLeft-8, int(y(v))+4, "faint", "end", picture.Short(v))
	}
	h.times(whole, bottom, x)
	middles := make([]time.Duration, h.slots)
	for i := range middles {
		middles[i] = time.Duration(i)*h.width + h.width/2
	}
	for _, l := range lines {
		h.WriteString(`<path class="` + l.class + `" d="`)
		h.Line(middles, l.values, x, y, false)
		h.WriteString(`"/>` + "\n")
	}
}

// times writes the axis: the clock on the wall in UTC, at round times, all in one form.
func (h *chart) times(whole time.Duration, bottom int, x func(time.Duration) float64) {
	pace := max(picture.NiceTime(whole), time.Second)
	form := "15:04:05"
	switch {
	case pace >= 24*time.Hour:
		form = "Jan 2"
	case whole > 24*time.Hour:
		form = "Jan 2 15:04"
		pace = max(pace, 4*time.Hour)
	case pace >= time.Minute:
		form = "15:04"
	}
	start := stamp(h.report.start)
	for t := start.Truncate(pace); t.Sub(start) <= whole; t = t.Add(pace) {
		if t.Before(start) {
			continue
		}
		at := x(t.Sub(start))
		fmt.Fprintf(h, `<line class="grid" x1="%s" y1="%d" x2="%s" y2="%d"/>`+"\n", picture.Pixel(at), bottom, picture.Pixel(at), bottom+5)
		h.Text(int(at), bottom+20, "faint", "middle", t.Format(form))
	}
}
