// Package picture writes charts as SVG: paths over time, texts, and axes with round numbers. It is read
// on white and on black alike. It knows nothing of what it draws.
package picture

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Colours are for areas; they are read on white and on black alike.
var Colours = [...]string{
	"#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948",
	"#e15759", "#9c755f", "#499894", "#ff9da7", "#8cd17d", "#79706e",
}

// Others is the colour of what has none of its own.
const Others = "#9aa0a6"

const style = `<style>
text{font:12px system-ui,sans-serif;fill:#1f2328}
.title{font-size:16px;font-weight:600}
.system{font-size:13px;font-weight:600}
.faint{fill:#656d76}
.paper{fill:#ffffff}
.grid{stroke:#d0d7de;stroke-width:1}
.mark{stroke:#656d76;stroke-width:1;stroke-dasharray:1 3}
.area{fill-opacity:.6;stroke:none}
.limit,.demand,.admitted,.refused{fill:none;stroke-width:1.5;stroke-linejoin:round}
.limit{stroke:#cf222e;stroke-width:2;stroke-dasharray:7 3}
.demand{stroke:#0969da;stroke-width:1.2}
.admitted{stroke:#1f2328}
.refused{stroke:#8250df;stroke-dasharray:2 2}
.note{font-size:11px}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}
.faint{fill:#9198a1}
.paper{fill:#0d1117}
.grid{stroke:#30363d}
.mark{stroke:#9198a1}
.limit{stroke:#ff7b72}
.demand{stroke:#58a6ff}
.admitted{stroke:#f0f6fc}
.refused{stroke:#d2a8ff}
}
</style>
`

// SVG is a picture that is being written.
type SVG struct{ strings.Builder }

// Open begins the picture.
func (h *SVG) Open(width, height int, title, about string) {
	fmt.Fprintf(h, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(h, "<title>%s</title>\n", Escaped(title, 200))
	if about != "" {
		fmt.Fprintf(h, "<desc>%s</desc>\n", Escaped(about, 2000))
	}
	h.WriteString(style)
	fmt.Fprintf(h, `<rect class="paper" width="%d" height="%d"/>`+"\n", width, height)
}

// Line writes a path through points, forwards or back. Points on a level line are
// left out.
func (h *SVG) Line(at []time.Duration, values []float64, x func(time.Duration) float64, y func(float64) float64, back bool) {
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
		h.WriteString(command + Pixel(x(at[i])) + " " + Pixel(here))
	}
}

// Text writes a text; anchor is start, middle or end.
func (h *SVG) Text(x, y int, class, anchor, text string) {
	if class != "" {
		class = ` class="` + class + `"`
	}
	fmt.Fprintf(h, `<text%s x="%d" y="%d" text-anchor="%s">%s</text>`+"\n", class, x, y, anchor, Escaped(text, 140))
}

// Escaped returns text for XML, cut to some characters.
func Escaped(text string, most int) string {
	if utf8.RuneCountInString(text) > most {
		text = string([]rune(text)[:most]) + "..."
	}
	var b strings.Builder
	// A strings.Builder never fails.
	_ = xml.EscapeText(&b, []byte(text))
	return b.String()
}

// Pixel writes a coordinate with a tenth of a pixel.
func Pixel(v float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}

// NiceStep is the distance of lines that makes three to seven of them up to top.
func NiceStep(top float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(top)))
	for _, k := range []float64{0.2, 0.5, 1, 2} {
		if top/(k*unit) <= 7 {
			return k * unit
		}
	}
	return 5 * unit
}

// NiceTime is the distance of times on the axis: at most ten of them.
func NiceTime(whole time.Duration) time.Duration {
	for _, unit := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond} {
		for _, k := range []time.Duration{1, 2, 5} {
			if whole <= 10*k*unit {
				return k * unit
			}
		}
	}
	for _, seconds := range []time.Duration{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 4 * 3600, 12 * 3600, 24 * 3600} {
		if whole <= 10*seconds*time.Second {
			return seconds * time.Second
		}
	}
	return (whole / 10).Truncate(24*time.Hour) + 24*time.Hour
}

// TimeUnit is the unit in which all ticks of an axis are written whose distance is step, such as "s".
func TimeUnit(step time.Duration) (unit time.Duration, name string) {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "days"}, {time.Hour, "h"}, {time.Minute, "min"}} {
		if step >= u.unit && step%u.unit == 0 {
			return u.unit, u.name
		}
	}
	if step < time.Second && step < 100*time.Millisecond {
		return time.Millisecond, "ms"
	}
	return time.Second, "s"
}

// Tick writes a time in a unit.
func Tick(at, unit time.Duration) string {
	return strconv.FormatFloat(float64(at)/float64(unit), 'f', -1, 64)
}

// Short writes a number of the axis.
func Short(v float64) string {
	for _, u := range []struct {
		unit float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= u.unit*0.9999 {
			return strconv.FormatFloat(v/u.unit, 'g', 3, 64) + u.name
		}
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
