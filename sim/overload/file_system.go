package overload

import (
	"cmp"
	"slices"
	"strings"

	"github.com/stint-io/stint/internal/document"
)

// ownKeys are the options of stint's policy.
var ownKeys = []string{
	"rate", "burst", "concurrency", "adaptive", "max_wait", "max_queue", "max_waiting", "newest_first",
	"deadlines", "per_route", "client_throttle",
}

// modelKeys are those of models.
var modelKeys = []string{"model", "target", "interval", "rise", "fall", "queues", "hand"}

// own reads options of stint's policy.
func (p *parser) ownOptions(n *document.Node, o *Ours) {
	options(n, []key{
		{"rate", func(v *document.Node) { o.Rate = p.Percent(v) }},
		{"burst", func(v *document.Node) { o.Burst = p.Span(v) }},
		{"concurrency", func(v *document.Node) { o.Concurrency = int(p.Whole(v, 1, 1e6)) }},
		{"adaptive", func(v *document.Node) { o.Adaptive = p.Truth(v) }},
		{"max_wait", func(v *document.Node) { o.MaxWait = p.Span(v) }},
		{"max_queue", func(v *document.Node) { o.MaxQueue = p.Span(v) }},
		{"max_waiting", func(v *document.Node) { o.MaxWaiting = int(p.Whole(v, 1, 1<<20)) }},
		{"newest_first", func(v *document.Node) { o.NewestFirst = p.Truth(v) }},
		{"deadlines", func(v *document.Node) { o.Blind = !p.Truth(v) }},
		{"per_route", func(v *document.Node) { o.PerRoute = p.Truth(v) }},
		{"client_throttle", func(v *document.Node) {
			if o.Throttle = p.Number(v); o.Throttle != 0 && (o.Throttle < 1.1 || o.Throttle > 100) {
				p.Wants(v, "K of the client throttle, from 1.1 to 100, or 0 for none", "")
			}
		}},
	})
}

// modelOptions reads the parameters of a model.
func (p *parser) modelOptions(n *document.Node, t *Tuning) {
	options(n, []key{
		{"target", func(v *document.Node) { t.Target = p.Span(v) }},
		{"interval", func(v *document.Node) { t.Interval = p.Span(v) }},
		{"rise", func(v *document.Node) { t.Rise = p.Percent(v) }},
		{"fall", func(v *document.Node) { t.Fall = p.Percent(v) }},
		{"queues", func(v *document.Node) { t.Queues = int(p.Whole(v, 1, 10_000)) }},
		{"hand", func(v *document.Node) { t.Hand = int(p.Whole(v, 1, 10)) }},
	})
}

// comparison reads which systems to compare and what to show of them.
func (p *parser) comparison(root *document.Node) {
	if n := root.Get("stint"); n != nil && p.Known(n, "stint", ownKeys...) {
		p.ownOptions(n, &p.own)
	}
	if n := root.Get("systems"); n != nil {
		p.Systems = nil
		for _, item := range n.Each() {
			p.system(item)
		}
		if len(n.Each()) == 0 {
			p.Wants(n, "at least one system", "known systems: "+strings.Join(SystemNames(), ", "))
		}
	}
	for _, item := range root.Get("show").Each() {
		if name, err := p.Scenario.FigureNamed(p.Text(item, "")); err == nil {
			p.Show = append(p.Show, name)
		} else {
			p.faultf(item, err)
		}
	}
}

// system reads the name of a system, or a variant: of stint, with options that differ from those
// under stint, or of a model with its parameters.
func (p *parser) system(n *document.Node) {
	known := SystemNames()
	if n.Kind != document.Map {
		name := p.Text(n, "")
		if !slices.Contains(known, name) {
			p.Fault(n, document.Meant(name, known), "there is no system %q", name)
		}
		p.Systems = append(p.Systems, name)
		return
	}
	if !p.Known(n, "a system", slices.Concat([]string{"name"}, ownKeys, modelKeys)...) {
		return
	}
	name := p.Text(n.Get("name"), "")
	if name == "" || slices.Contains(known, name) || p.variants[name] != nil {
		p.Fault(n, "add a name that no other system has", "the variant needs a name of its own")
		return
	}
	p.Systems = append(p.Systems, name)
	model := p.Text(n.Get("model"), ownName)
	keys := ownKeys
	if model == ownName {
		own := p.own
		own.Label = name
		p.ownOptions(n, &own)
		p.variants[name] = &own
	} else {
		keys = modelKeys
		tuning := Tuning{Label: name}
		p.modelOptions(n, &tuning)
		make, ok := baselines[model]
		if !ok {
			p.Fault(n.Get("model"), document.Meant(model, known), "there is no model %q", model)
			return
		}
		if tuning.Hand > cmp.Or(tuning.Queues, 64) {
			p.Fault(n.Get("hand"), "", "the hand has more than all queues")
		}
		p.variants[name] = make(tuning)
	}
	for _, f := range n.Fields {
		if !slices.Contains(keys, f.Key.Text) && !slices.Contains([]string{"name", "model"}, f.Key.Text) {
			p.Fault(f.Key, "it has "+strings.Join(keys, ", "), "%s is no option of %s", f.Key.Text, model)
		}
	}
}
