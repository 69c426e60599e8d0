package sim

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/picture"
)

// svg is what a test looks at in a chart.
type svg struct {
	text   string
	texts  []string
	paths  map[string]int // by class
	points [][2]float64   // of all paths
}

func drawn(t *testing.T, c *Comparison) svg {
	t.Helper()
	var b bytes.Buffer
	if err := c.WriteChart(&b); err != nil {
		t.Fatal(err)
	}
	out := svg{text: b.String(), paths: map[string]int{}}
	dec := xml.NewDecoder(&b)
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := token.(type) {
		case xml.CharData:
			out.texts = append(out.texts, string(x))
		case xml.StartElement:
			if x.Name.Local != "path" {
				continue
			}
			for _, a := range x.Attr {
				if a.Name.Local == "class" {
					out.paths[a.Value]++
				}
				if a.Name.Local == "d" {
					out.points = append(out.points, pathPoints(t, a.Value)...)
				}
			}
		}
	}
}

func pathPoints(t *testing.T, d string) [][2]float64 {
	t.Helper()
	var points [][2]float64
	for _, p := range strings.FieldsFunc(strings.TrimSuffix(d, "Z"), func(r rune) bool { return r == 'M' || r == 'L' }) {
		x, y, _ := strings.Cut(p, " ")
		a, err1 := strconv.ParseFloat(x, 64)
		b, err2 := strconv.ParseFloat(y, 64)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		points = append(points, [2]float64{a, b})
	}
	return points
}

func compared(t *testing.T, s Scenario, systems ...System) *Comparison {
	t.Helper()
	c, err := Compare(t.Context(), s, systems, 1)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A chart has a panel for each system, with lines for the limit, admitted and refused,
// and an area for each instance that has a share.
func TestChart(t *testing.T) {
	c := compared(t, Scenario{
		Name: `<script>"x" & y`, About: "a < b", Limit: limitOf(100, 10), Instances: 3, Duration: 3 * time.Second,
		Changes: []Change{{time.Second, limitOf(200, 10)}},
		Stops:   []Stop{{At: 2 * time.Second, For: 500 * ms, Node: 1}},
		Network: Network{Delay: 10 * ms}, Loads: []Load{{Demand: steady(300)}},
	}, &Ours{}, EqualSplit{})
	got := drawn(t, c)
	if fmt.Sprint(got.paths) != "map[admitted:2 area:6 demand:2 limit:2 refused:2]" {
		t.Errorf("paths %v", got.paths)
	}
	all := strings.Join(got.texts, "\n")
	for _, want := range []string{
		`<script>"x" & y`, "a < b", "stint: use ", "equal-split: use ", "admitted by all", "prefers-color-scheme:dark",
		"1s: the limit becomes 200/s", "2s: instance 1 crashes, down for 500ms", "\nthe limit becomes 200/s\n", "\ninstance 1 crashes, down for 500ms\n",
		"\n2.5\n", "time since the start of the run, in s", "demand of all", "100", "200",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
	if limit, admitted := strings.LastIndex(got.text, `class="limit"`), strings.LastIndex(got.text, `class="admitted"`); limit < admitted {
		t.Error("what is admitted is drawn over the limit")
	}
	if strings.Contains(got.text, "<script") {
		t.Error("the name is not escaped")
	}
	for _, p := range got.points {
		if p[0] < chartLeft || p[0] > chartRight || p[1] < chartHeader || p[1] > chartHeader+2*(chartPanel+chartEvents) {
			t.Errorf("a point at %v", p)
		}
	}
}

// Instances beyond twelve are one area, whoever they are, and a long run with many of
// them does not make a large chart.
func TestChartIsBounded(t *testing.T) {
	c := compared(t, Scenario{
		Limit: limitOf(1000, 10), Instances: 200, Duration: 100 * time.Second, Network: Network{Delay: 10 * ms},
		Loads: []Load{{Demand: steady(100), Arrivals: Poisson}, {Demand: steady(400), Instances: []int{150}}},
	}, EqualSplit{})
	got := drawn(t, c)
	if got.paths["area"] != maxAreas+1 {
		t.Errorf("%d areas, want %d", got.paths["area"], maxAreas+1)
	}
	all := strings.Join(got.texts, "\n")
	if !strings.Contains(all, "\n150\n") || !strings.Contains(all, "188 others") {
		t.Errorf("the busiest instance has no area of its own, or the others none:\n%s", all)
	}
	if most := 2 * (maxAreas + 1 + 4) * maxPoints; len(got.points) > most {
		t.Errorf("%d points, want at most %d", len(got.points), most)
	}
	for range 30 {
		c.Rows = append(c.Rows, c.Rows[0])
	}
	if got := drawn(t, c); got.paths["limit"] != maxPanels || !strings.Contains(got.text, "15 more systems are not drawn") {
		t.Errorf("%d panels", got.paths["limit"])
	}
}

// Numbers that are none, and a limit of zero, do not break a chart.
func TestChartOfStrangeNumbers(t *testing.T) {
	c := compared(t, Scenario{Limit: limitOf(0, 0), Instances: 2, Duration: time.Second, Loads: []Load{{Demand: steady(10)}}}, EqualSplit{})
	for i := range c.Rows[0].First.Samples {
		c.Rows[0].First.Samples[i].Shares[i%2] = []float32{float32(math.NaN()), float32(math.Inf(1)), -5}[i%3]
	}
	if got := drawn(t, c); strings.Contains(got.text, "NaN") || strings.Contains(got.text, "Inf") {
		t.Errorf("got %s", got.text)
	}
	c.Rows[0].First.Samples = nil
	drawn(t, c)
}

func TestAxes(t *testing.T) {
	for _, top := range []float64{0.3, 1, 1.05, 7, 999, 1050, 2e9} {
		if n := top / picture.NiceStep(top); n < 2 || n > 7.0001 {
			t.Errorf("%v: %v lines", top, n)
		}
	}
	for _, d := range []time.Duration{ms, 30 * ms, time.Second, 25 * time.Second, time.Minute, time.Hour, 30 * 24 * time.Hour} {
		if n := d / picture.NiceTime(d); n < 1 || n > 10 {
			t.Errorf("%v: %d times", d, n)
		}
	}
	for _, c := range []struct {
		whole time.Duration
		want  string
	}{{30 * ms, "0 5 10 15 20 25 30 ms"}, {2 * time.Second, "0 0.2 0.4 0.6 0.8 1 1.2 1.4 1.6 1.8 2 s"}, {90 * time.Second, "0 10 20 30 40 50 60 70 80 90 s"}, {8 * time.Minute, "0 1 2 3 4 5 6 7 8 min"}, {9 * time.Hour, "0 1 2 3 4 5 6 7 8 9 h"}, {6 * 24 * time.Hour, "0 1 2 3 4 5 6 days"}} {
		step, got := picture.NiceTime(c.whole), ""
		unit, name := picture.TimeUnit(step)
		for at := time.Duration(0); at <= c.whole; at += step {
			got += picture.Tick(at, unit) + " "
		}
		if got += name; got != c.want {
			t.Errorf("%v: ticks %s, want %s", c.whole, got, c.want)
		}
	}
}
