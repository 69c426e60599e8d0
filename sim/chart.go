package sim

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/stint-io/stint/internal/picture"
)

// The layout of a chart, in pixels.
const (
	chartWidth  = 960
	chartLeft   = 70 // of the plots; the numbers of the axis stand left of it
	chartRight  = chartWidth - 20
	chartHeader = 96  // title and legend
	chartPanel  = 280 // one system, without the names of events
	chartPlot   = 210 // of it the plot
	chartEvents = 30  // above the plot, for the names of events
	chartFooter = 24

	// maxAreas is how many instances have an area of their own: not more, because
	// more colours cannot be distinguished. The rest are one area.
	maxAreas = len(picture.Colours)
	// maxPanels bounds the height.
	maxPanels = 16
	// maxPoints bounds the points of a line: one for each three pixels.
	maxPoints = 300
	// maxEventName bounds the name of an event in the picture, in letters.
	maxEventName = 60
	// maxMarks bounds the events that are marked.
	maxMarks = 60
)

// chart draws a comparison.
type chart struct {
	*Comparison
	picture.SVG

	ids    []int // instances with an area of their own
	others int   // how many have none
	top    float64
	cut    bool // something is above the top
	marks  []mark
	panel  int // height
}

// WriteChart writes an SVG of the first run of each system, one above the other: the
// shares of instances stacked over time, the limit, what was asked for, admitted and refused
// in all, and the events. Instances beyond the twelve that were asked most are one area.
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
	h.panel = chartPanel
	if len(h.marks) > 0 {
		h.panel += chartEvents
	}
	height := chartHeader + len(rows)*h.panel + chartFooter
	h.Open(chartWidth, height, c.Scenario.Name, c.Scenario.About)
	h.header()
	for i := range panels {
		h.draw(i, &panels[i])
	}
	_, unit := picture.TimeUnit(picture.NiceTime(c.Scenario.Duration))
	note := "time since the start of the run, in " + unit
	if n := len(c.Rows) - len(rows); n > 0 {
		note += fmt.Sprintf("; %d more systems are not drawn", n)
	}
	if h.cut {
		note += fmt.Sprintf("; lines above %s tokens/s are cut off", picture.Short(h.top))
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
		for _, line := range [][]float64{p.limit, p.demand, p.admitted, p.refused} {
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
		{"limit", "limit"}, {"demand", "demand of all"}, {"admitted", "admitted by all"}, {"refused", "refused by all"},
	} {
		fmt.Fprintf(h, `<line class="%s" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", l.class, x, y-4, x+26, y-4)
		h.Text(x+32, y, "", "start", l.name)
		x += 160
	}
	if len(h.marks) > 0 {
		fmt.Fprintf(h, `<line class="mark" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", x+13, y-12, x+13, y+2)
		h.Text(x+32, y, "", "start", "an event")
	}
	x, y = chartLeft, 76
	h.Text(x, y, "faint", "start", "shares of instances:")
	x += 130
	for k, id := range h.ids {
		fmt.Fprintf(h, `<rect class="area" x="%d" y="%d" width="12" height="12" fill="%s"/>`+"\n", x, y-10, picture.Colours[k])
		label := strconv.Itoa(id)
		h.Text(x+16, y, "", "start", label)
		x += 26 + 7*len(label)
	}
	if h.others > 0 {
		fmt.Fprintf(h, `<rect class="area" x="%d" y="%d" width="12" height="12" fill="%s"/>`+"\n", x, y-10, picture.Others)
		h.Text(x+16, y, "", "start", fmt.Sprintf("%d others", h.others))
	}
}

// draw writes the panel of one system.
func (h *chart) draw(index int, p *panel) {
	base := chartHeader + index*h.panel
	top := base + 24 + h.panel - chartPanel
	bottom := top + chartPlot
	h.Text(chartLeft, base+14, "system", "start", p.title)
	h.Text(chartRight, base+14, "faint", "end", "tokens/s over time")
	fmt.Fprintf(h, `<clipPath id="plot%d"><rect x="%d" y="%d" width="%d" height="%d"/></clipPath>`+"\n",
		index, chartLeft, top, chartRight-chartLeft, chartPlot)
	y := func(v float64) float64 { return float64(bottom) - v/h.top*chartPlot }
	x := func(at time.Duration) float64 {
		return chartLeft + float64(at)/float64(h.Scenario.Duration)*(chartRight-chartLeft)
	}
	step := picture.NiceStep(h.top)
	for k := 0; float64(k)*step <= h.top; k++ {
		v := float64(k) * step
		fmt.Fprintf(h, `<line class="grid" x1="%d" y1="%s" x2="%d" y2="%s"/>`+"\n", chartLeft, picture.Pixel(y(v)), chartRight, picture.Pixel(y(v)))
		h.Text(chartLeft-8, int(y(v))+4, "faint", "end", picture.Short(v))
	}
	pace := picture.NiceTime(h.Scenario.Duration)
	unit, _ := picture.TimeUnit(pace)
	for at := time.Duration(0); at <= h.Scenario.Duration; at += pace {
		fmt.Fprintf(h, `<line class="grid" x1="%s" y1="%d" x2="%s" y2="%d"/>`+"\n", picture.Pixel(x(at)), bottom, picture.Pixel(x(at)), bottom+5)
		h.Text(int(x(at)), bottom+20, "faint", "middle", picture.Tick(at, unit))
	}
	fmt.Fprintf(h, `<g clip-path="url(#plot%d)">`+"\n", index)
	below := make([]float64, len(p.at))
	for k, area := range p.areas {
		fill := picture.Others
		if k < len(h.ids) {
			fill = picture.Colours[k]
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
	for _, l := range []struct {
		class  string
		values []float64
	}{{"refused", p.refused}, {"demand", p.demand}, {"admitted", p.admitted}, {"limit", p.limit}} {
		h.WriteString(`<path class="` + l.class + `" d="`)
		h.Line(p.at, l.values, x, y, false)
		h.WriteString(`"/>` + "\n")
	}
	h.WriteString("</g>\n")
	h.events(x, top, bottom)
}

// events draws the events of the scenario, with their names above the plot: in two lines, one after the
// other, where there is room. All have their name in full for who points at them.
func (h *chart) events(x func(time.Duration) float64, top, bottom int) {
	const perLetter = 5.6 // of the class note, on average
	free := [2]float64{chartLeft - 20, chartLeft - 20}
	for _, m := range h.marks {
		at := x(m.at)
		fmt.Fprintf(h, `<line class="mark" x1="%s" y1="%d" x2="%s" y2="%d"><title>%s</title></line>`+"\n",
			picture.Pixel(at), top, picture.Pixel(at), bottom, picture.Escaped(m.text, 100))
		width := perLetter * float64(min(utf8.RuneCountInString(m.name), maxEventName+3))
		left, anchor := at, "start"
		if at+width > chartRight {
			left, anchor = at-width, "end"
		}
		for row := range free {
			if left < free[row]+8 {
				continue
			}
			free[row] = left + width
			y := top - 5 - row*14
			fmt.Fprintf(h, `<text class="faint note" x="%s" y="%d" text-anchor="%s">%s</text>`+"\n", picture.Pixel(at), y, anchor, picture.Escaped(m.name, maxEventName))
			if row > 0 {
				fmt.Fprintf(h, `<line class="mark" x1="%s" y1="%d" x2="%s" y2="%d"/>`+"\n", picture.Pixel(at), y+2, picture.Pixel(at), top)
			}
			break
		}
	}
}
