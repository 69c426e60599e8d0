package ui

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/picture"
	"github.com/stint-io/stint/server/internal/lending"
)

const (
	leaseEvery  = 2 * time.Second
	leasePoints = 150 // 5 minutes
	// leaseCharts is how many buckets have a chart.
	leaseCharts = 8
	// leaseBands is how many holders a chart shows by name.
	leaseBands = 11
)

// leases remember who held which lease. The coordinator is asked only while somebody looks, and for ten minutes after:
// it stands still meanwhile. It is safe for concurrent use.
type leases struct {
	o *Options

	mu struct {
		sync.Mutex
		looked  time.Time
		page    leaseView
		samples []sample
	}
}

// leaseView is what GET /v1/leases answers.
type leaseView struct {
	lending.Page
	Note string `json:"note"`
	err  error
}

// sample is who held what at a moment.
type sample struct {
	at   time.Time
	held map[string]map[string]float64 // by bucket and instance
}

// bucketID names a bucket.
func bucketID(r *lending.Resource) string { return r.Limit + "\x00" + r.Key }

// run samples until ctx ends.
func (l *leases) run(ctx context.Context) {
	t := time.NewTicker(leaseEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			l.mu.Lock()
			looked := now.Sub(l.mu.looked) < 10*time.Minute
			l.mu.Unlock()
			if looked {
				l.sample(ctx, now)
			}
		}
	}
}

func (l *leases) sample(ctx context.Context, now time.Time) {
	v := l.ask(ctx)
	s := sample{now, map[string]map[string]float64{}}
	for i := range v.Resources {
		r := &v.Resources[i]
		held := make(map[string]float64, len(r.Leases))
		for k := range r.Leases {
			held[r.Leases[k].Instance] += r.Leases[k].Granted
		}
		s.held[bucketID(r)] = held
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.page = v
	l.mu.samples = append(l.mu.samples, s)
	if n := len(l.mu.samples) - leasePoints; n > 0 {
		l.mu.samples = slices.Delete(l.mu.samples, 0, n)
	}
}

// ask asks the coordinator.
func (l *leases) ask(ctx context.Context) (v leaseView) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/v1/leases", http.NoBody)
	if err != nil {
		v.err = err
		return v
	}
	w := &answered{header: http.Header{}, status: http.StatusOK}
	l.o.Leases.ServeHTTP(w, r)
	if w.status != http.StatusOK {
		v.err = errors.New(string(bytes.TrimSpace(w.body.Bytes())))
		return v
	}
	v.err = json.Unmarshal(w.body.Bytes(), &v)
	return v
}

// answered is an answer that stays here.
type answered struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answered) Header() http.Header            { return a.header }
func (a *answered) WriteHeader(status int)         { a.status = status }
func (a *answered) Write(text []byte) (int, error) { return a.body.Write(text) }

// look returns what is known now.
func (l *leases) look(ctx context.Context) (leaseView, []sample) {
	l.mu.Lock()
	first := len(l.mu.samples) == 0
	l.mu.looked = time.Now()
	l.mu.Unlock()
	if first {
		l.sample(ctx, time.Now())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.page, slices.Clone(l.mu.samples)
}

// area draws who held how much of a bucket, one upon the other.
func area(id string, capacity float64, samples []sample) template.HTML {
	const width, height, left, bottom = 640, 170, 52, 146
	if len(samples) < 2 {
		return ""
	}
	total := map[string]float64{}
	top := capacity
	for _, s := range samples {
		sum := 0.0
		for who, n := range s.held[id] {
			total[who] += n
			sum += n
		}
		top = max(top, sum)
	}
	if top <= 0 {
		return ""
	}
	names := make([]string, 0, len(total))
	for who := range total {
		names = append(names, who)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(total[b], total[a]), cmp.Compare(a, b)) })
	named := names[:min(len(names), leaseBands)]
	slices.Sort(named) // a band keeps its place
	last := samples[len(samples)-1].at
	span := time.Duration(leasePoints) * leaseEvery
	x := func(back time.Duration) float64 { return left + float64(width-left)*(1-float64(back)/float64(span)) }
	y := func(v float64) float64 { return bottom - v/(top*1.05)*(bottom-10) }
	at := make([]time.Duration, len(samples))
	for i, s := range samples {
		at[i] = min(last.Sub(s.at), span)
	}
	var h picture.SVG
	openChart(&h, width, height, "Who held how much in the latest five minutes; the table has the same figures of now")
	for v, step := 0.0, picture.NiceStep(top); v <= top*1.05; v += step {
		grid(&h, left, width, y(v), picture.Short(v))
	}
	under := make([]float64, len(samples))
	band := func(class string, title string, of func(held map[string]float64) float64) {
		over := make([]float64, len(samples))
		for i, s := range samples {
			over[i] = under[i] + of(s.held[id])
		}
		fmt.Fprintf(&h, `<path class="band %s" d="`, class)
		h.Line(at, over, x, y, false)
		h.Line(at, under, x, y, true)
		fmt.Fprintf(&h, `Z"><title>%s</title></path>`, picture.Escaped(title, 80))
		under = over
	}
	for i, who := range named {
		band(fmt.Sprintf("c%d", i), who, func(held map[string]float64) float64 { return held[who] })
	}
	if len(names) > len(named) {
		rest := names[leaseBands:]
		band("others", fmt.Sprintf("%d others", len(rest)), func(held map[string]float64) (sum float64) {
			for _, who := range rest {
				sum += held[who]
			}
			return sum
		})
	}
	line(&h, "limitline", left, width, y(capacity))
	axis(&h, left, width, height, "5 min ago", "now")
	h.WriteString("</svg>")
	legend := `<ul class="legend">`
	for i, who := range named {
		legend += fmt.Sprintf(`<li><svg class="key" width="10" height="10" aria-hidden="true"><rect class="c%d" width="10" height="10"/></svg> <bdi>%s</bdi></li>`, i, picture.Escaped(who, 60))
	}
	return template.HTML(h.String() + legend + "</ul>") //nolint:gosec // what is written is escaped
}

// chart draws what a limit admitted and refused.
func chart(allowed, refused []float64) template.HTML {
	const width, height, left, bottom = 640, 170, 52, 146
	top := 1.0
	for i := range allowed {
		top = max(top, allowed[i], refused[i])
	}
	n := len(allowed)
	at := make([]time.Duration, n)
	for i := range at {
		at[i] = time.Duration(n-1-i) * pointEvery * time.Second
	}
	span := time.Duration(points-1) * pointEvery * time.Second
	x := func(back time.Duration) float64 { return left + float64(width-left)*(1-float64(back)/float64(span)) }
	y := func(v float64) float64 { return bottom - v/(top*1.05)*(bottom-10) }
	var h picture.SVG
	openChart(&h, width, height, "Requests per second that were admitted and refused in the latest five minutes")
	for v, step := 0.0, picture.NiceStep(top); v <= top*1.05; v += step {
		grid(&h, left, width, y(v), picture.Short(v))
	}
	for _, one := range []struct {
		class  string
		values []float64
	}{{"admitted", allowed}, {"refused", refused}} {
		fmt.Fprintf(&h, `<path class="curve %s" d="`, one.class)
		h.Line(at, one.values, x, y, false)
		h.WriteString(`"/>`)
	}
	axis(&h, left, width, height, "5 min ago", "now")
	h.WriteString("</svg>")
	return template.HTML(h.String()) //nolint:gosec // numbers and words of this file
}

// openChart begins a chart, which takes its colours from the style of the page.
func openChart(h *picture.SVG, width, height int, about string) {
	fmt.Fprintf(h, `<svg class="chart" viewBox="0 0 %d %d" role="img" aria-label="%s">`, width, height, about)
}

func grid(h *picture.SVG, left, right int, y float64, label string) {
	line(h, "grid", left, right, y)
	fmt.Fprintf(h, `<text x="%d" y="%s" text-anchor="end">%s</text>`, left-6, picture.Pixel(y+4), label)
}

func line(h *picture.SVG, class string, left, right int, y float64) {
	fmt.Fprintf(h, `<line class="%s" x1="%d" x2="%d" y1="%s" y2="%s"/>`, class, left, right, picture.Pixel(y), picture.Pixel(y))
}

func axis(h *picture.SVG, left, right, height int, from, to string) {
	fmt.Fprintf(h, `<text x="%d" y="%d">%s</text><text x="%d" y="%d" text-anchor="end">%s</text>`, left, height-6, from, right, height-6, to)
}
