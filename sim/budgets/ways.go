package budgets

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/estimate"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// limits returns an engine with the budget as a month's limit.
func limits(budget int64, now func() limit.Time, options string) (*engine.Engine, error) {
	set, err := rules.Parse("budget.yaml", fmt.Appendf(nil, "limits: [{name: budget, algorithm: fixed_window, rate: %d/month%s}]\n", budget, options))
	if err != nil {
		return nil, err
	}
	return engine.New(memory.New(memory.Options{Now: now}), set, engine.Options{})
}

// reserving is stint's way.
type reserving struct {
	book     *reserve.Book
	ttl      time.Duration
	charge   bool
	learns   bool
	declares bool
}

// Reserving reserves what a stream declares and commits what it has cost. charge: what is reserved by streams whose
// gateway has crashed stays charged.
func Reserving(ttl time.Duration, charge bool) New {
	return func(budget int64, now func() limit.Time) (Way, error) { return newReserving(budget, now, ttl, charge) }
}

func newReserving(budget int64, now func() limit.Time, ttl time.Duration, charge bool) (*reserving, error) {
	e, err := limits(budget, now, "")
	if err != nil {
		return nil, err
	}
	book := reserve.New(e, records.New(now, 0), slog.New(slog.DiscardHandler), func() time.Time { return time.Unix(0, int64(now())) })
	return &reserving{book: book, ttl: ttl, charge: charge}, nil
}

// Learning reserves an estimate that is learned. Where streams declare the most that they can cost, that is reserved near
// the end of the budget; where they do not, an estimate to the end.
func Learning(quantile float64, ttl time.Duration, charge, declares bool) New {
	return func(budget int64, now func() limit.Time) (Way, error) {
		w, err := newReserving(budget, now, ttl, charge)
		if err != nil {
			return nil, err
		}
		w.learns, w.declares = true, declares
		e, err := estimate.New(estimate.Options{
			Config: estimate.Config{By: []string{"model", "tenant"}, Declared: "max_tokens", Quantile: quantile},
			Now:    func() time.Duration { return time.Duration(now()) },
		})
		w.book.Learn(e)
		return w, err
	}
}

func (w *reserving) Begin(declared int64) (string, int64, bool, error) {
	q := limit.Request{Cost: declared}
	if w.learns {
		q.Cost = 0
		q.Attributes = []limit.Attribute{{Name: "model", Value: "m"}, {Name: "tenant", Value: "t"}}
	}
	if w.declares {
		q.Attributes = append(q.Attributes, limit.Attribute{Name: "max_tokens", Value: strconv.FormatInt(declared, 10)})
	}
	r, d, err := w.book.Reserve(context.Background(), q, w.ttl, w.charge)
	return r.ID, r.Reserved, d.Allowed, err
}

func (w *reserving) End(id string, _, _, actual int64) error {
	_, err := w.book.Commit(context.Background(), id, actual)
	return err
}

func (w *reserving) Renew(id string, used int64) error {
	_, err := w.book.Renew(context.Background(), id, used, 0)
	return err
}

func (w *reserving) Tick() error { return w.book.Sweep(context.Background()) }

// probing asks whether anything is left, and charges at the end.
type probing struct{ engine *engine.Engine }

// Probing is the way of gateways that send a cost of 0 first and the whole at the end, such as Envoy AI Gateway
// (hits_addend 0, then from dynamic metadata), and of LiteLLM's counter, which is looked at before a call and raised
// after it. It is charge: after of a limits file.
func Probing(budget int64, now func() limit.Time) (Way, error) {
	e, err := limits(budget, now, ", charge: after")
	return &probing{e}, err
}

func (w *probing) ask(cost int64) (bool, error) {
	q := &engine.Query{Descriptors: []engine.Descriptor{{Cost: cost}}}
	err := w.engine.Decide(context.Background(), q)
	return q.Decision.Allowed, err
}

func (w *probing) Begin(int64) (string, int64, bool, error) {
	ok, err := w.ask(0)
	return "", 0, ok, err
}

func (w *probing) End(_ string, _, _, actual int64) error {
	_, err := w.ask(actual)
	return err
}

func (*probing) Renew(string, int64) error { return nil }

func (*probing) Tick() error { return nil }
