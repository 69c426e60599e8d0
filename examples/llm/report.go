package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"time"
)

// wayNames are what the ways are called in the table and the chart.
var wayNames = map[string]string{byReserve: "reserve, renew, commit", byProbe: "ask with 0, charge at the end"}

// print writes what was spent of each budget, and what became of the requests.
func (r *result) print(out io.Writer) {
	for _, c := range r.courses {
		fmt.Fprintf(out, "\n%s\n", wayNames[c.way])
		fmt.Fprintf(out, "  %-7s %-16s %10s %10s %10s %8s %8s\n", "tenant", "a month", "budget", "counted", "spent", "use", "over")
		for _, w := range demands {
			for i, b := range budgets {
				f, spent := c.stands[w.tenant][i], b.spent(c.last(), w.tenant)
				fmt.Fprintf(out, "  %-7s %-16s %10d %10d %10d %8.3f %7.1f%%\n", w.tenant, b, f.Quota, f.Used, spent,
					float64(spent)/float64(f.Quota), 100*c.over(w.tenant, i))
			}
		}
		for _, w := range demands {
			o := c.outcomes[w.tenant]
			fmt.Fprintf(out, "  %-7s %d answered, %d cut by the crash, %d refused, of which %d named another model; %d failed\n",
				w.tenant, o.Done.Load(), o.Cut.Load(), o.Refused.Load(), o.Suggested.Load(), o.Failed.Load())
		}
	}
	fmt.Fprintln(out, "\ncounted: by stint at the end; spent: by the provider's bill, cut streams included")
}

// The chart's size, in pixels: a panel for each tenant and budget.
const (
	panelWidth, panelHeight = 230, 150
	panelLeft, panelTop     = 62, 54
	chartTop, chartLeft     = 40, 20
	chartWidth              = chartLeft + 3*(panelWidth+panelLeft) + 20
	chartHeight             = chartTop + 3*(panelHeight+panelTop) + 30
)

var wayColours = map[string]string{byReserve: "#0b6bcb", byProbe: "#d9730d"}

const budgetColour, faint, ink = "#cf222e", "#d0d7de", "#1f2328"

// svg draws what was spent of each budget over time.
func (r *result) svg() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="system-ui,sans-serif" font-size="12" fill="%s">`+"\n",
		chartWidth, chartHeight, chartWidth, chartHeight, ink)
	fmt.Fprintf(&b, `<title>Spend against budget</title><rect width="100%%" height="100%%" fill="white"/>`+"\n")
	r.legend(&b)
	for i := range budgets {
		for k := range demands {
			r.panel(&b, i, k)
		}
	}
	fmt.Fprintln(&b, "</svg>")
	return b.Bytes()
}

func (r *result) legend(b *bytes.Buffer) {
	text(b, chartLeft, 20, "start", `font-size="15" font-weight="600"`, "Spend against the budget of a month, by the provider's bill")
	x := float64(chartLeft)
	for _, c := range r.courses {
		path(b, fmt.Sprintf("M%.0f 36h24", x), wayColours[c.way], "2", "")
		text(b, x+30, 40, "start", "", wayNames[c.way])
		x += 240
	}
	path(b, fmt.Sprintf("M%.0f 36h24", x), budgetColour, "2", "7 3")
	text(b, x+30, 40, "start", "", "budget")
	path(b, fmt.Sprintf("M%.0f 30v12", x+110), ink, "1", "2 2")
	text(b, x+120, 40, "start", "", "a gateway is killed")
}

// panel draws one budget of one tenant.
func (r *result) panel(b *bytes.Buffer, i, k int) {
	left, top := float64(chartLeft+panelLeft+i*(panelWidth+panelLeft)), float64(chartTop+panelTop+k*(panelHeight+panelTop))
	tenant, quota := demands[k].tenant, float64(r.courses[0].stands[demands[k].tenant][i].Quota)
	most, end := quota, time.Duration(0)
	for _, c := range r.courses {
		most = max(most, float64(budgets[i].spent(c.last(), tenant)))
		end = max(end, c.samples[len(c.samples)-1].at)
	}
	most *= 1.12 // room above the highest line
	x := func(at time.Duration) float64 { return left + panelWidth*at.Seconds()/end.Seconds() }
	y := func(v float64) float64 { return top + panelHeight*(1-v/most) }
	text(b, left, top-10, "start", `font-weight="600"`, fmt.Sprintf("%s: %s", tenant, budgets[i]))
	for v, step := 0.0, niceStep(most); v <= most; v += step {
		path(b, fmt.Sprintf("M%.1f %.1fh%d", left, y(v), panelWidth), faint, "1", "")
		text(b, left-6, y(v)+4, "end", "", thousands(v))
	}
	for at, step := time.Duration(0), niceTime(end); at <= end; at += step {
		text(b, x(at), top+panelHeight+16, "middle", "", fmt.Sprintf("%.0f s", at.Seconds()))
	}
	path(b, fmt.Sprintf("M%.1f %.1fv%d", x(r.courses[0].killed), top, panelHeight), ink, "1", "2 2")
	path(b, fmt.Sprintf("M%.1f %.1fh%d", left, y(quota), panelWidth), budgetColour, "2", "7 3")
	for n := range r.courses {
		c := r.courses[len(r.courses)-1-n] // ours on top
		line, before := fmt.Sprintf("M%.1f %.1f", left, y(0)), int64(0)
		for n, s := range c.samples {
			spent := budgets[i].spent(s.bill, tenant)
			if n > 0 && n+1 < len(c.samples) && spent == before && spent == budgets[i].spent(c.samples[n+1].bill, tenant) {
				continue // on a level line
			}
			line += fmt.Sprintf("L%.1f %.1f", x(s.at), y(float64(spent)))
			before = spent
		}
		line += fmt.Sprintf("H%.1f", x(end))
		path(b, line, wayColours[c.way], "2", "")
	}
}

func path(b *bytes.Buffer, d, colour, width, dash string) {
	fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="%s" stroke-dasharray="%s"/>`+"\n", d, colour, width, dash)
}

func text(b *bytes.Buffer, x, y float64, anchor, more, words string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" %s>%s</text>`+"\n", x, y, anchor, more, words)
}

// thousands writes a number of the axis.
func thousands(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%gk", math.Round(v/100)/10)
	}
	return fmt.Sprintf("%g", v)
}

// niceStep is the distance of lines that makes three to six of them.
func niceStep(top float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(top)))
	for _, k := range []float64{0.2, 0.5, 1, 2} {
		if top/(k*unit) <= 5.5 {
			return k * unit
		}
	}
	return 5 * unit
}

func niceTime(whole time.Duration) time.Duration {
	for _, s := range []time.Duration{1, 2, 5, 10, 20, 60, 120, 300, 600} {
		if whole <= 6*s*time.Second {
			return s * time.Second
		}
	}
	return whole / 4
}
