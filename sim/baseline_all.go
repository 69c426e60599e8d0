package sim

import (
	"math"

	"github.com/stint-io/stint/limit"
)

// Baselines returns our models of the published systems, each with the constants of
// its description. They are values without state: one may serve many runs at once.
func Baselines() []System {
	return []System{
		EqualSplit{},
		Hermes{},
		Doorman{Kind: ProportionalShare},
		Doorman{Kind: FairShare},
		GlobalRandomDrop{},
		FlowProportionalShare{},
		GlobalRandomDrop{Peers: raghavanPeers},
		FlowProportionalShare{Peers: raghavanPeers},
		Databricks{},
		Ably{Linear: true},
		Ably{},
		Line{},
	}
}

// modelNever is a time that does not come.
const modelNever = limit.Time(math.MaxInt64)

// modelTimers are several timers of a node on the one that its Env offers.
type modelTimers struct {
	env   Env
	at    [5]limit.Time
	asked limit.Time // what Env was asked for and has not delivered
}

func newModelTimers(env Env) *modelTimers {
	t := &modelTimers{env: env, asked: modelNever}
	for i := range t.at {
		t.at[i] = modelNever
	}
	return t
}

// set puts timer i to t, modelNever to stop it.
func (t *modelTimers) set(i int, at limit.Time) {
	t.at[i] = at
	next := modelNever
	for _, each := range t.at {
		next = min(next, each)
	}
	if next != t.asked {
		t.asked = next
		t.env.WakeAt(next)
	}
}

// woken begins a Wake: Env has no timer any more.
func (t *modelTimers) woken() { t.asked = modelNever }

// due reports whether timer i has run down.
func (t *modelTimers) due(i int) bool { return t.at[i] <= t.env.Now() }

// modelNext is the end of the period that began at was, or of one that begins now
// when the process was paused for longer.
func modelNext(was, now limit.Time, period int64) limit.Time {
	if next := was + limit.Time(period); next > now {
		return next
	}
	return now + limit.Time(period)
}

// modelWeight is the weight of instance i: its number of clients, at least 1.
func modelWeight(setup Setup, i int) float64 {
	if i < len(setup.Weights) {
		return float64(max(1, setup.Weights[i]))
	}
	return 1
}

// modelOld reports whether instance i runs an old version.
func modelOld(setup Setup, i int) bool { return i < len(setup.Old) && setup.Old[i] }

// modelEqual is the limit divided by the instances, in tokens per second.
func modelEqual(setup Setup) float64 {
	return setup.Limit.PerSecond() / float64(max(1, setup.Instances))
}

// modelSeconds is the time from a to b in seconds.
func modelSeconds(a, b limit.Time) float64 { return float64(b-a) / 1e9 }
