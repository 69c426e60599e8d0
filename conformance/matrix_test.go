package conformance_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/gatewaytest"
	"github.com/stint-io/stint/internal/seeding"
)

var (
	update = flag.Bool("update", false, "write the table in docs/reference/transports.md anew")
	onlyOf = flag.String("sharing", "", "ask on this sharing alone, or on \"all\"; one in this process and one elsewhere are drawn by default")
)

func ways() []way {
	return slices.Concat(serviceWays(), httpWays(), grpcWays(), fileWays())
}

// outcome is what one cell of the table shows.
type outcome struct {
	way, scenario, sharing string
	why                    string // it cannot: what is missing; "" = as expected
}

var table struct {
	sync.Mutex
	cells []outcome
}

// asked returns the sharings to ask on.
func asked(t *testing.T) []string {
	switch *onlyOf {
	case "all":
		return sharings
	case "":
		var drawn []string
		for seed := range seeding.Draw(t, 1) {
			drawn = []string{[]string{"memory", "file"}[seed%2], []string{"redis", "leases"}[seed/2%2]}
		}
		return drawn
	}
	return []string{*onlyOf}
}

// TestMatrix asks every scenario through every way on the sharings.
func TestMatrix(t *testing.T) {
	for _, sharing := range asked(t) {
		for _, g := range groups {
			if _, no := g.notShared[sharing]; no {
				continue
			}
			t.Run(strings.TrimRight(sharing+" "+g.name, " "), func(t *testing.T) { start(t, sharing, g).ask(t) })
		}
	}
}

// ask asks all scenarios of the site's group through all ways.
func (s *site) ask(t *testing.T) {
	var askers []asker
	list := ways()
	for _, w := range list {
		if w.notShared[s.sharing] != "" || s.group.notIn[w.name] != "" || w.only != nil && s.group.name != "" {
			askers = append(askers, nil)
			continue
		}
		askers = append(askers, w.open(t, s))
	}
	if s.group.name == failedGroup {
		s.redis.Kill()
	}
	later := false
	for _, sc := range s.scenarios() {
		later = later || sc.later != nil
		for i, w := range list {
			if s.group.afresh && askers[i] != nil {
				s.service.Restart(t)
			}
			t.Run(sc.name+"/"+w.name, func(t *testing.T) { s.cell(t, sc, w, askers[i], false) })
		}
	}
	if !later {
		return
	}
	if s.group.name == restartGroup {
		s.service.StopAndStart(t)
		gatewaytest.AwaitReady(t, s.service.Admin)
		s.settle(t, list, askers)
	} else {
		s.reload(t, askers)
	}
	for _, sc := range s.scenarios() {
		if sc.later == nil {
			continue
		}
		for i, w := range list {
			t.Run(sc.name+", later/"+w.name, func(t *testing.T) { s.cell(t, sc, w, askers[i], true) })
		}
	}
}

// reload puts the changed configuration in force everywhere.
func (s *site) reload(t *testing.T, askers []asker) {
	s.write(t, true)
	s.service.Reload(t)
	for _, a := range askers {
		if r, ok := a.(reloader); ok {
			r.reload(t)
		}
	}
}

// settle waits until every way reaches the service again.
func (s *site) settle(t *testing.T, list []way, askers []asker) {
	for i, a := range askers {
		if _, batch := a.(runner); a == nil || batch {
			continue
		}
		a.in(settledName)
		gatewaytest.Eventually(t, list[i].name+" to reach the service", func() bool {
			got := a.ask(t, query{key: "again"})
			if _, silent := list[i].lacks[remaining]; silent {
				return got.err == nil && got.allowed
			}
			return got.err == nil && got.limit == settledName
		})
	}
}

// cannot says why a cell has no outcome of its own, "" if it has.
func (s *site) cannot(sc scenario, w way) string {
	for _, g := range groups {
		if g.name != sc.group {
			continue
		}
		if why := g.notShared[s.sharing]; why != "" {
			return why
		}
		if why := g.notIn[w.name]; why != "" {
			return why
		}
	}
	if w.only != nil && !slices.Contains(w.only, sc.name) {
		return w.otherwise
	}
	if why, no := w.notShared[s.sharing]; no {
		return why
	}
	if why, no := sc.notShared[s.sharing]; no {
		return why
	}
	for _, f := range sc.about {
		if why, lacking := w.lacks[f]; lacking {
			return why
		}
	}
	return ""
}

// inputs are elements without which a scenario cannot even be asked.
var inputs = []feature{
	costs, peeks, finishes, reserves, addresses, unnamed, empty, bytes, twice, lookalike, encoded, fieldsIn, customers, reloads,
}

// cell asks the steps of a scenario and compares. Where a way lacks an element of the answers that the
// scenario is about, it is asked all the same and compared in the rest.
func (s *site) cell(t *testing.T, sc scenario, w way, a asker, later bool) {
	why := s.cannot(sc, w)
	table.Lock()
	table.cells = append(table.cells, outcome{w.name, sc.name, s.sharing, why})
	table.Unlock()
	if a == nil || sc.notShared[s.sharing] != "" || w.only != nil && !slices.Contains(w.only, sc.name) {
		return
	}
	for _, f := range sc.about {
		if _, lacking := w.lacks[f]; lacking && slices.Contains(inputs, f) {
			return
		}
	}
	steps := sc.steps
	switch {
	case later:
		steps = sc.later
	case w.strict && sc.strict != nil:
		steps = sc.strict
	}
	for f, other := range sc.without {
		if _, lacking := w.lacks[f]; lacking {
			steps = other
		}
	}
	a.in(sc.name)
	if r, ok := a.(runner); ok {
		for i, got := range r.run(t, sc, steps) {
			report(t, sc, w, i, steps[i], got)
		}
		return
	}
	var held, reserved []int
	replies := make([]reply, len(steps))
	for i, st := range steps {
		switch st.do {
		case finish:
			last := held[len(held)-1]
			a.(settler).settle(t, finish, steps[last].q, replies[last])
			continue
		case release, commit:
			last := reserved[len(reserved)-1]
			a.(settler).settle(t, st.do, steps[last].q, replies[last])
			continue
		}
		begin := time.Now()
		got := a.ask(t, st.q)
		for st.q.soon && got.compare(st.want, w.lacks) != nil && time.Since(begin) < 10*time.Second {
			got = a.ask(t, st.q)
		}
		replies[i] = got
		if st.q.hold {
			held = append(held, i)
		}
		if st.q.reserve {
			reserved = append(reserved, i)
		}
		report(t, sc, w, i, st, got)
	}
}

func report(t *testing.T, sc scenario, w way, i int, st step, got reply) {
	t.Helper()
	if strings.Contains(t.Name(), "/leases") {
		// Rates are lent in millionths of a token per second, rounded down.
		st.want.retryAtMost *= 1 + 1e-6*3600
	}
	for _, fault := range got.compare(st.want, w.lacks) {
		t.Errorf("%s, step %d: %s", sc.name, i+1, fault)
	}
}

// TestTable holds the table in the reference to the suite.
func TestTable(t *testing.T) {
	name := filepath.Join("..", "docs", "reference", "transports.md")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- generated by go test ./conformance -update -->\n", "<!-- end of what is generated -->\n"
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s lacks the marks of the generated table", name)
	}
	want := head + begin + tables() + end + tail
	if *update {
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Errorf("%s is not what the suite says: go test ./conformance -run TestTable -update", name)
	}
}

// tables returns the tables of the reference, one for each sharing, and the reasons.
func tables() string {
	var b strings.Builder
	var notes []string
	note := func(why string) int {
		i := slices.Index(notes, why)
		if i < 0 {
			i = len(notes)
			notes = append(notes, why)
		}
		return i + 1
	}
	cells := 0
	for _, sharing := range sharings {
		s := &site{sharing: sharing}
		fmt.Fprintf(&b, "\n### %s\n\n| way |", strings.ToUpper(sharing[:1])+sharing[1:])
		for _, sc := range scenarios() {
			fmt.Fprintf(&b, " %s |", sc.name)
		}
		fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---|", len(scenarios())))
		for _, w := range ways() {
			if why, no := w.notShared[sharing]; no {
				cells += len(scenarios())
				fmt.Fprintf(&b, "| %s |%s\n", w.name, strings.Repeat(fmt.Sprintf(" [%d](#reasons) |", note(why)), len(scenarios())))
				continue
			}
			fmt.Fprintf(&b, "| %s |", w.name)
			for _, sc := range scenarios() {
				cells++
				if why := s.cannot(sc, w); why != "" {
					fmt.Fprintf(&b, " [%d](#reasons) |", note(why))
				} else {
					b.WriteString(" yes |")
				}
			}
			b.WriteString("\n")
		}
	}
	fmt.Fprintf(&b, "\n%d cells: %d ways, %d scenarios, %d sharings.\n\n### Reasons\n\n", cells, len(ways()), len(scenarios()), len(sharings))
	for i, why := range notes {
		fmt.Fprintf(&b, "%d. %s\n", i+1, why)
	}
	return b.String()
}
