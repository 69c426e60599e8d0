package sim

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/stint-io/stint/sim/internal/report"
)

// The layout of a chart, in pixels.
const (
	chartWidth  = 960
	chartLeft   = 70 // of the plots; the numbers of the axis stand left of it
	chartRight  = chartWidth - 20
	chartHeader = 96  // title and legend
	chartPanel  = 280 // one system
	chartPlot   = 210 // of it the plot
	chartFooter = 24

	// maxAreas is how many instances have an area of their own: not more, because
	// more colours cannot be distinguished. The rest are one area.
	maxAreas = len(report.Colours)
	// maxPanels bounds the height.
	maxPanels = 16
	// maxPoints bounds the points of a line: one for each three pixels.
	maxPoints = 300
	// maxMarks bounds the events that are marked.
	maxMarks = 60
)

// chart draws a comparison.
type chart struct {
	*Comparison
	report.SVG

	ids    []int // instances with an area of their own
	others int   // how many have none
	top    float64
	cut    bool // something is above the top
	marks  []mark
}

// WriteChart writes an SVG of the first run of each system, one above the other: the
// shares of instances stacked over time, the limit, and what was admitted and refused
// in all. Instances beyond the twelve that were asked most are one area.
func (c *Comparison) WriteChart(w io.Writer) error {
	h := &chart{Comparison: c}
	rows := c.Rows[:min(len(c.Rows), maxPanels)]
	h.choose(rows)
	h.marks = c.Scenario.marks()
	panels := make([]panel, len(rows))
	for i, row := range rows {
		panels[i] = h.newPanel(row)
	}
	h.scale(panels)
	height := chartHeader + len(rows)*chartPanel + chartFooter
	h.Open(chartWidth, height, c.Scenario.Name, c.Scenario.About)
	h.header()
	for i := range panels {
		h.draw(i, &panels[i])
	}
	note := "time since the start of the run"
	if n := len(c.Rows) - len(rows); n > 0 {
		note += fmt.Sprintf("; %d more systems are not drawn", n)
	}
	if h.cut {
		note += fmt.Sprintf("; lines above %s tokens/s are cut off", report.Short(h.top))
	}
	h.Text(chartLeft, height-8, "faint", "start", note)
	h.WriteString("</svg>\n")
	_, err := io.WriteString(w, h.String())
	return err
}

// choose gives areas of their own to the instances that are asked most, which are the
// same for all systems.
func (h *chart) choose(rows []Row) {
	n := h.Scenario.Instances
	h.ids = make([]int, n)
	for i := range h.ids {
		h.ids[i] = i
	}
	if n <= maxAreas || len(rows) == 0 {
		h.ids = h.ids[:min(n, maxAreas)]
		h.others = n - len(h.ids)
		return
	}
	in := rows[0].First.Instances
	slices.SortStableFunc(h.ids, func(a, b int) int {
		return cmp.Compare(in[b].Offered.Tokens+in[b].Missed.Tokens, in[a].Offered.Tokens+in[a].Missed.Tokens)
	})
	h.ids = h.ids[:maxAreas]
	slices.Sort(h.ids)
	h.others = n - maxAreas
}

// scale finds the top of all plots. What is far above the limit is cut off, so that
// the rest can be read.
func (h *chart) scale(panels []panel) {
	most, limit := 0.0, h.Scenario.Limit.PerSecond()
	for _, c := range h.Scenario.Changes {
		limit = max(limit, c.Limit.PerSecond())
	}
	for _, p := range panels {
		for _, line := range [][]float64{p.limit, p.admitted, p.refused} {
			for _, y := range line {
				most = max(most, y)
			}
		}
		for i := range p.at {
			sum := 0.0
			for _, area := range p.areas {
				sum += area[i]
			}
			most = max(most, sum)
		}
	}
	h.top = most
	if limit > 0 && most > 3*limit {
		h.top, h.cut = 3*limit, true
	}
	if h.top <= 0 {
		h.top = 1
	}
	h.top *= 1.05
}

func (h *chart) header() {
	h.Text(chartLeft, 26, "title", "start", h.Scenario.Name)
	x, y := chartLeft, 52
	for _, l := range []struct{ class, name string }{
		{"limit", "limit"}, {"admitted", "admitted by all"}, {"refused", "refused by all"},
	} {
		fmt.Fprintf(h, `<line class="%s" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", l.class, x, y-4, x+26, y-4)
		h.Text(x+32, y, "", "start", l.name)
		x += 160
	}
	if len(h.marks) > 0 {
		fmt.Fprintf(h, `<line class="mark" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", x+13, y-12, x+13, y+2)
		h.Text(x+32, y, "", "start", "an event, named when pointed at")
	}
	x, y = chartLeft, 76
	h.Text(x, y, "faint", "start", "shares of instances:")
	x += 130
	for k, id := range h.ids {
		fmt.Fprintf(h, `<rect class="area" x="%d" y="%d" width="12" height="12" fill="%s"/>`+"\n", x, y-10, report.Colours[k])
		label := strconv.Itoa(id)
		h.Text(x+16, y, "", "start", label)
		x += 26 + 7*len(label)
	}
	if h.others > 0 {
		fmt.Fprintf(h, `<rect class="area" x="%d" y="%d" width="12" height="12" fill="%s"/>`+"\n", x, y-10, report.Others)
		h.Text(x+16, y, "", "start", fmt.Sprintf("%d others", h.others))
	}
}

// draw writes the panel of one system.
func (h *chart) draw(index int, p *panel) {
	base := chartHeader + index*chartPanel
	top := base + 24
	bottom := top + chartPlot
	h.Text(chartLeft, base+14, "system", "start", p.title)
	h.Text(chartRight, base+14, "faint", "end", "tokens/s over time")
	fmt.Fprintf(h, `<clipPath id="plot%d"><rect x="%d" y="%d" width="%d" height="%d"/></clipPath>`+"\n",
		index, chartLeft, top, chartRight-chartLeft, chartPlot)
	y := func(v float64) float64 { return float64(bottom) - v/h.top*chartPlot }
	x := func(at time.Duration) float64 {
		return chartLeft + float64(at)/float64(h.Scenario.Duration)*(chartRight-chartLeft)
	}
	step := report.NiceStep(h.top)
	for k := 0; float64(k)*step <= h.top; k++ {
		v := float64(k) * step
		fmt.Fprintf(h, `<line class="grid" x1="%d" y1="%s" x2="%d" y2="%s"/>`+"\n", chartLeft, report.Pixel(y(v)), chartRight, report.Pixel(y(v)))
		h.Text(chartLeft-8, int(y(v))+4, "faint", "end", report.Short(v))
	}
	pace := report.NiceTime(h.Scenario.Duration)
	for at := time.Duration(0); at <= h.Scenario.Duration; at += pace {
		fmt.Fprintf(h, `<line class="grid" x1="%s" y1="%d" x2="%s" y2="%d"/>`+"\n", report.Pixel(x(at)), bottom, report.Pixel(x(at)), bottom+5)
		h.Text(int(x(at)), bottom+20, "faint", "middle", report.ShortTime(at))
	}
	fmt.Fprintf(h, `<g clip-path="url(#plot%d)">`+"\n", index)
	below := make([]float64, len(p.at))
	for k, area := range p.areas {
		fill := report.Others
		if k < len(h.ids) {
			fill = report.Colours[k]
		}
		above := make([]float64, len(below))
		empty := true
		for i := range above {
			above[i] = below[i] + area[i]
			empty = empty && area[i] == 0
		}
		if !empty {
			h.WriteString(`<path class="area" fill="` + fill + `" d="`)
			h.Line(p.at, above, x, y, false)
			h.Line(p.at, below, x, y, true)
			h.WriteString(`Z"/>` + "\n")
		}
		below = above
	}
	for _, m := range h.marks {
		fmt.Fprintf(h, `<line class="mark" x1="%s" y1="%d" x2="%s" y2="%d"><title>%s</title></line>`+"\n",
			report.Pixel(x(m.at)), top, report.Pixel(x(m.at)), bottom, report.Escaped(m.text, 100))
	}
	for _, l := range []struct {
		class  string
		values []float64
	}{{"refused", p.refused}, {"limit", p.limit}, {"admitted", p.admitted}} {
		h.WriteString(`<path class="` + l.class + `" d="`)
		h.Line(p.at, l.values, x, y, false)
		h.WriteString(`"/>` + "\n")
	}
	h.WriteString("</g>\n")
}
