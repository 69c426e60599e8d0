// Package tables makes the tables of docs/benchmarks: each function runs one
// comparison, checks that the work was done and answered as claimed, and writes
// its rows. A wrong answer or an idle workload is an error; a slow contender is
// only a figure.
package tables

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
)

// Config says how long to measure. All fields must be set, but Binary.
type Config struct {
	Slice  time.Duration // length of one slice of one contender
	Rounds int           // slices of each contender, odd so that there is a middle one
	Keys   int           // keys in the tables with many; at most a million

	Contention time.Duration // length of one run under contention
	Budget     int64         // byte budget of the flooded store
	Victims    int           // keys of each limit that are used up before the flood; they must fit the budget
	Limits     int           // limits in the long file
	Pairs      int           // pairs of slices of the service and the always-OK server
	Service    time.Duration // length of one such slice

	Redis        time.Duration // length of one slice of one contender with Redis
	RedisKeys    int           // keys in the table of many keys in Redis
	RedisService time.Duration // length of one slice of one service with Redis

	LeaseIdle   time.Duration // how long idle instances are watched
	LeaseRounds int           // changes of demand for the coordinator's rounds

	Fleets     []int         // numbers of processes that share limits
	FleetSteps int           // how often all load moves to one of them
	FleetEven  time.Duration // how long all ask, before each step
	FleetHot   time.Duration // how long one asks, after it
	FleetSmall time.Duration // how long small limits are measured, for all and for one; 0 = not at all
	// FleetSettle is how long they are asked for before: what was saved is spent by then.
	FleetSettle time.Duration
	Steps       []float64     // multiples of the limit that demand steps to
	StepOver    time.Duration // how long it stays there

	FollowFleets  int // fleets whose demands change at random
	FollowChanges int // how often those of each change

	Waiters int // callers who wait for one limit

	Agree     int    // requests of each configuration that two services are asked
	AgreeSeed uint64 // draws them

	Root   string // the repository, to build the service from
	Binary string // stint's binary; empty = built from Root
}

// Full is what the published tables are made with.
func Full(root string) Config {
	return Config{
		Slice: 200 * time.Millisecond, Rounds: 11, Keys: 1_000_000,
		Contention: 2 * time.Second, Budget: 16 << 20, Victims: 10_000, Limits: 10_000,
		Pairs: 7, Service: 4 * time.Second,
		Redis: time.Second, RedisKeys: 100_000, RedisService: 1500 * time.Millisecond,
		LeaseIdle: 10 * time.Second, LeaseRounds: 50,
		Fleets: []int{2, 3, 10, 96}, FleetSteps: 3, FleetEven: 6 * time.Second, FleetHot: 8 * time.Second,
		FleetSmall: 22 * time.Second, FleetSettle: 5 * time.Second,
		Steps: []float64{3, 5, 10, 30, 100}, StepOver: 7 * time.Second,
		FollowFleets: 5, FollowChanges: 10, Waiters: 100_000, Agree: 1000, Root: root,
	}
}

// Quick is for a look: the same work, less of it.
func Quick(root string) Config {
	return Config{
		Slice: 30 * time.Millisecond, Rounds: 5, Keys: 1_000_000,
		Contention: 300 * time.Millisecond, Budget: 4 << 20, Victims: 2000, Limits: 10_000,
		Pairs: 3, Service: time.Second,
		Redis: 200 * time.Millisecond, RedisKeys: 100_000, RedisService: 400 * time.Millisecond,
		LeaseIdle: 3 * time.Second, LeaseRounds: 10,
		Fleets: []int{10, 96}, FleetSteps: 1, FleetEven: 3 * time.Second, FleetHot: 4 * time.Second,
		FleetSmall: 4 * time.Second, FleetSettle: 2 * time.Second,
		Steps: []float64{3, 30}, StepOver: 4 * time.Second,
		FollowFleets: 1, FollowChanges: 4, Waiters: 20_000, Agree: 200, Root: root,
	}
}

// Report writes Markdown and collects the goals. Not safe for concurrent use.
type Report struct {
	Out   io.Writer
	Goals []Goal
}

// Goal is a figure that stint promises and what this run saw of it, or one that is
// stated without a promise: then Bound is empty, and Word says what it means.
type Goal struct {
	What, Bound, Seen string
	Met               bool
	Word              string
}

// Section starts a table's section.
func (r *Report) Section(title string, about ...string) {
	fmt.Fprintf(r.Out, "\n### %s\n\n%s\n", title, strings.Join(about, " "))
}

// Table writes a table; the first column is text, the others are figures.
func (r *Report) Table(head []string, rows [][]string) {
	fmt.Fprintf(r.Out, "\n| %s |\n|---|%s\n", strings.Join(head, " | "), strings.Repeat("---:|", len(head)-1))
	for _, row := range rows {
		fmt.Fprintf(r.Out, "| %s |\n", strings.Join(row, " | "))
	}
}

// AtMost records a goal that seen should not exceed.
func (r *Report) AtMost(what string, seen, bound float64, unit string) {
	r.Goals = append(r.Goals, Goal{What: what, Bound: "at most " + figure(bound) + unit, Seen: figure(seen) + unit, Met: seen <= bound})
}

// AtLeast records a goal that seen should reach.
func (r *Report) AtLeast(what string, seen, bound float64, unit string) {
	r.Goals = append(r.Goals, Goal{What: what, Bound: "at least " + figure(bound) + unit, Seen: figure(seen) + unit, Met: seen >= bound})
}

// State records a figure that has no goal. Where it does not speak for stint, otherwise
// says what it says.
func (r *Report) State(what string, seen float64, unit string, speaks bool, otherwise string) {
	g := Goal{What: what, Seen: figure(seen) + unit, Met: true, Word: "stated"}
	if !speaks {
		g.Word = "**" + otherwise + "**"
	}
	r.Goals = append(r.Goals, g)
}

// Summary writes all goals recorded so far and says whether all were met.
func (r *Report) Summary() (met bool) {
	met = true
	rows := make([][]string, len(r.Goals))
	for i, g := range r.Goals {
		word := "met"
		if !g.Met {
			word, met = "**missed**", false
		}
		rows[i] = []string{g.What, cmp.Or(g.Bound, "–"), g.Seen, cmp.Or(g.Word, word)}
	}
	r.Section("Goals", "What stint promises, and what this run saw.")
	r.Table([]string{"what", "goal", "seen", ""}, rows)
	return met
}

// figure writes at most three decimals and none that say nothing.
func figure(x float64) string {
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.3f", x), "0"), ".")
}
