package overload

import (
	"fmt"
	"io"
	"time"

	"github.com/stint-io/stint/internal/picture"
	"github.com/stint-io/stint/sim/internal/report"
)

// The layout of a chart, in pixels.
const (
	chartWidth  = 960
	chartLeft   = 70
	chartRight  = chartWidth - 20
	chartHeader = 74
	chartPanel  = 240 // one system
	chartPlot   = 170
	chartFooter = 24
	maxPanels   = 16
)

// chart draws a comparison.
type chart struct {
	picture.SVG

	scenario *Scenario
	top      float64 // requests per second
}

// WriteChart writes an SVG of the first run of each system, one above the other: requests over
// time that came, that were answered well and in time, and that were not.
func (c *Comparison) WriteChart(w io.Writer) error {
	h := &chart{scenario: &c.Scenario}
	rows := c.Rows[:min(len(c.Rows), maxPanels)]
	height := chartHeader + len(rows)*chartPanel + chartFooter
	h.Open(chartWidth, height, c.Scenario.Name, c.Scenario.About)
	h.Text(chartLeft, 26, "title", "start", c.Scenario.Name)
	x := chartLeft
	for _, l := range []struct{ class, name string }{
		{"demand", "requests"}, {"admitted", "answered well and in time"}, {"refused", "not"},
	} {
		fmt.Fprintf(h, `<line class="%s" x1="%d" y1="48" x2="%d" y2="48"/>`+"\n", l.class, x, x+26)
		h.Text(x+32, 52, "", "start", l.name)
		x += 130 + 6*len(l.name)
	}
	perBin := float64(bins) / c.Scenario.Duration.Seconds()
	for _, row := range rows {
		for _, b := range row.First.Timeline {
			h.top = max(h.top, float64(b.Offered)*perBin*1.05, 1)
		}
	}
	for i, row := range rows {
		h.draw(i, row.System, row.First, perBin)
	}
	_, unit := picture.TimeUnit(picture.NiceTime(c.Scenario.Duration))
	h.Text(chartLeft, height-8, "faint", "start", "time since the start of the run, in "+unit)
	h.WriteString("</svg>\n")
	_, err := io.WriteString(w, h.String())
	return err
}

// draw writes the panel of one system.
func (h *chart) draw(index int, name string, r *Result, perBin float64) {
	base := chartHeader + index*chartPanel
	top := base + 24
	bottom := top + chartPlot
	h.Text(chartLeft, base+14, "system", "start", fmt.Sprintf("%s: goodput %s/s, p99 %s ms, mean delay %s ms", name,
		report.Digits(r.Goodput), report.Digits(1e3*r.All.Latency.Quantile(0.99)), report.Digits(1e3*r.Delay.Mean())))
	h.Text(chartRight, base+14, "faint", "end", "requests/s over time")
	fmt.Fprintf(h, `<clipPath id="plot%d"><rect x="%d" y="%d" width="%d" height="%d"/></clipPath>`+"\n",
		index, chartLeft, top, chartRight-chartLeft, chartPlot)
	y := func(v float64) float64 { return float64(bottom) - v/h.top*chartPlot }
	x := func(at time.Duration) float64 {
		return chartLeft + float64(at)/float64(h.scenario.Duration)*(chartRight-chartLeft)
	}
	step := picture.NiceStep(h.top)
	for v := 0.0; v <= h.top; v += step {
		fmt.Fprintf(h, `<line class="grid" x1="%d" y1="%s" x2="%d" y2="%s"/>`+"\n", chartLeft, picture.Pixel(y(v)), chartRight, picture.Pixel(y(v)))
		h.Text(chartLeft-8, int(y(v))+4, "faint", "end", picture.Short(v))
	}
	pace := picture.NiceTime(h.scenario.Duration)
	unit, _ := picture.TimeUnit(pace)
	for at := time.Duration(0); at <= h.scenario.Duration; at += pace {
		h.Text(int(x(at)), bottom+18, "faint", "middle", picture.Tick(at, unit))
	}
	fmt.Fprintf(h, `<g clip-path="url(#plot%d)">`+"\n", index)
	at := make([]time.Duration, bins)
	lines := map[string][]float64{}
	for k, b := range r.Timeline {
		at[k] = b.At + h.scenario.Duration/(2*bins)
		lines["demand"] = append(lines["demand"], float64(b.Offered)*perBin)
		lines["admitted"] = append(lines["admitted"], float64(b.Good)*perBin)
		lines["refused"] = append(lines["refused"], float64(b.Bad)*perBin)
	}
	for _, class := range []string{"demand", "refused", "admitted"} {
		h.WriteString(`<path class="` + class + `" d="`)
		h.Line(at, lines[class], x, y, false)
		h.WriteString(`"/>` + "\n")
	}
	h.WriteString("</g>\n")
}
