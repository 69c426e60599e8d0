package sim

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
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
	maxAreas = 12
	// maxPanels bounds the height.
	maxPanels = 16
	// maxPoints bounds the points of a line: one for each three pixels.
	maxPoints = 300
	// maxMarks bounds the events that are marked.
	maxMarks = 60
)

// chartColours are for areas; they are read on white and on black alike.
var chartColours = [maxAreas]string{
	"#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948",
	"#e15759", "#9c755f", "#499894", "#ff9da7", "#8cd17d", "#79706e",
}

const chartOthers = "#9aa0a6"

const chartStyle = `<style>
text{font:12px system-ui,sans-serif;fill:#1f2328}
.title{font-size:16px;font-weight:600}
.system{font-size:13px;font-weight:600}
.faint{fill:#656d76}
.paper{fill:#ffffff}
.grid{stroke:#d0d7de;stroke-width:1}
.mark{stroke:#656d76;stroke-width:1;stroke-dasharray:1 3}
.area{fill-opacity:.6;stroke:none}
.limit,.admitted,.refused{fill:none;stroke-width:1.5;stroke-linejoin:round}
.limit{stroke:#cf222e;stroke-width:2;stroke-dasharray:7 3}
.admitted{stroke:#1f2328}
.refused{stroke:#8250df;stroke-dasharray:2 2}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}
.faint{fill:#9198a1}
.paper{fill:#0d1117}
.grid{stroke:#30363d}
.mark{stroke:#9198a1}
.limit{stroke:#ff7b72}
.admitted{stroke:#f0f6fc}
.refused{stroke:#d2a8ff}
}
</style>
`

// chart draws a comparison.
type chart struct {
	*Comparison
	strings.Builder

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
	fmt.Fprintf(h, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`+"\n", chartWidth, height, chartWidth, height)
	fmt.Fprintf(h, "<title>%s</title>\n", escaped(c.Scenario.Name, 200))
	if c.Scenario.About != "" {
		fmt.Fprintf(h, "<desc>%s</desc>\n", escaped(c.Scenario.About, 2000))
	}
	h.WriteString(chartStyle)
	fmt.Fprintf(h, `<rect class="paper" width="%d" height="%d"/>`+"\n", chartWidth, height)
	h.header()
	for i := range panels {
		h.draw(i, &panels[i])
	}
	note := "time since the start of the run"
	if n := len(c.Rows) - len(rows); n > 0 {
		note += fmt.Sprintf("; %d more systems are not drawn", n)
	}
	if h.cut {
		note += fmt.Sprintf("; lines above %s tokens/s are cut off", short(h.top))
	}
	h.text(chartLeft, height-8, "faint", "start", note)
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
	h.text(chartLeft, 26, "title", "start", h.Scenario.Name)
	x, y := chartLeft, 52
	for _, l := range []struct{ class, name string }{
		{"limit", "limit"}, {"admitted", "admitted by all"}, {"refused", "refused by all"},
	} {
		fmt.Fprintf(h, `<line class="%s" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", l.class, x, y-4, x+26, y-4)
		h.text(x+32, y, "", "start", l.name)
		x += 160
	}
	if len(h.marks) > 0 {
		fmt.Fprintf(h, `<line class="mark" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", x+13, y-12, x+13, y+2)
		h.text(x+32, y, "", "start", "an event, named when pointed at")
	}
	x, y = chartLeft, 76
	h.text(x, y, "faint", "start", "shares of instances:")
	x += 130
	for k, id := range h.ids {
		fmt.Fprintf(h, `<rect class="area" x="%d" y="%d" width="12" height="12" fill="%s"/>`+"\n", x, y-10, chartColours[k])
		label := strconv.Itoa(id)
		h.text(x+16, y, "", "start", label)
		x += 26 + 7*len(label)
	}
	if h.others > 0 {
		fmt.Fprintf(h, `<rect class="area" x="%d" y="%d" width="12" height="12" fill="%s"/>`+"\n", x, y-10, chartOthers)
		h.text(x+16, y, "", "start", fmt.Sprintf("%d others", h.others))
	}
}

// draw writes the panel of one system.
func (h *chart) draw(index int, p *panel) {
	base := chartHeader + index*chartPanel
	top := base + 24
	bottom := top + chartPlot
	h.text(chartLeft, base+14, "system", "start", p.title)
	h.text(chartRight, base+14, "faint", "end", "tokens/s over time")
	fmt.Fprintf(h, `<clipPath id="plot%d"><rect x="%d" y="%d" width="%d" height="%d"/></clipPath>`+"\n",
		index, chartLeft, top, chartRight-chartLeft, chartPlot)
	y := func(v float64) float64 { return float64(bottom) - v/h.top*chartPlot }
	x := func(at time.Duration) float64 {
		return chartLeft + float64(at)/float64(h.Scenario.Duration)*(chartRight-chartLeft)
	}
	step := niceStep(h.top)
	for k := 0; float64(k)*step <= h.top; k++ {
		v := float64(k) * step
		fmt.Fprintf(h, `<line class="grid" x1="%d" y1="%s" x2="%d" y2="%s"/>`+"\n", chartLeft, pixel(y(v)), chartRight, pixel(y(v)))
		h.text(chartLeft-8, int(y(v))+4, "faint", "end", short(v))
	}
	pace := niceTime(h.Scenario.Duration)
	for at := time.Duration(0); at <= h.Scenario.Duration; at += pace {
		fmt.Fprintf(h, `<line class="grid" x1="%s" y1="%d" x2="%s" y2="%d"/>`+"\n", pixel(x(at)), bottom, pixel(x(at)), bottom+5)
		h.text(int(x(at)), bottom+20, "faint", "middle", shortTime(at))
	}
	fmt.Fprintf(h, `<g clip-path="url(#plot%d)">`+"\n", index)
	below := make([]float64, len(p.at))
	for k, area := range p.areas {
		fill := chartOthers
		if k < len(h.ids) {
			fill = chartColours[k]
		}
		above := make([]float64, len(below))
		empty := true
		for i := range above {
			above[i] = below[i] + area[i]
			empty = empty && area[i] == 0
		}
		if !empty {
			h.WriteString(`<path class="area" fill="` + fill + `" d="`)
			h.line(p.at, above, x, y, false)
			h.line(p.at, below, x, y, true)
			h.WriteString(`Z"/>` + "\n")
		}
		below = above
	}
	for _, m := range h.marks {
		fmt.Fprintf(h, `<line class="mark" x1="%s" y1="%d" x2="%s" y2="%d"><title>%s</title></line>`+"\n",
			pixel(x(m.at)), top, pixel(x(m.at)), bottom, escaped(m.text, 100))
	}
	for _, l := range []struct {
		class  string
		values []float64
	}{{"refused", p.refused}, {"limit", p.limit}, {"admitted", p.admitted}} {
		h.WriteString(`<path class="` + l.class + `" d="`)
		h.line(p.at, l.values, x, y, false)
		h.WriteString(`"/>` + "\n")
	}
	h.WriteString("</g>\n")
}

// line writes a path through points, forwards or back. Points on a level line are
// left out.
func (h *chart) line(at []time.Duration, values []float64, x func(time.Duration) float64, y func(float64) float64, back bool) {
	n := len(values)
	for k := range n {
		i, command := k, "L"
		if back {
			i = n - 1 - k
		} else if k == 0 {
			command = "M"
		}
		here := y(values[i])
		if k > 0 && k < n-1 && math.Abs(y(values[i-1])-here) < 0.05 && math.Abs(y(values[i+1])-here) < 0.05 {
			continue
		}
		h.WriteString(command + pixel(x(at[i])) + " " + pixel(here))
	}
}

func (h *chart) text(x, y int, class, anchor, text string) {
	if class != "" {
		class = ` class="` + class + `"`
	}
	fmt.Fprintf(h, `<text%s x="%d" y="%d" text-anchor="%s">%s</text>`+"\n", class, x, y, anchor, escaped(text, 110))
}

// escaped returns text for XML, cut to some characters.
func escaped(text string, most int) string {
	if utf8.RuneCountInString(text) > most {
		text = string([]rune(text)[:most]) + "..."
	}
	var b strings.Builder
	// A strings.Builder never fails.
	_ = xml.EscapeText(&b, []byte(text))
	return b.String()
}

// pixel writes a coordinate with a tenth of a pixel.
func pixel(v float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}
