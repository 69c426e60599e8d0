package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Reservations are costs that are taken before they are known. [reserve.Book] has them.
type Reservations interface {
	Reserve(ctx context.Context, req limit.Request, ttl time.Duration, charge bool) (reserve.Reservation, limit.Decision, error)
	Renew(ctx context.Context, id string, used int64, ttl time.Duration) (reserve.Reservation, error)
	Commit(ctx context.Context, id string, actual int64) (reserve.Reservation, error)
	Release(ctx context.Context, id string) (reserve.Reservation, error)
	Guess(attrs []limit.Attribute) (*reserve.Estimate, error)
}

// reservation is one on the wire.
type reservation struct {
	ID       string    `json:"id"`
	State    string    `json:"state"`
	Reserved int64     `json:"reserved"`
	Clamped  bool      `json:"clamped,omitempty"`
	Extended bool      `json:"extended,omitempty"`
	Used     int64     `json:"used,omitempty"`
	Actual   *int64    `json:"actual,omitempty"`
	Late     bool      `json:"late,omitempty"`
	Ends     time.Time `json:"ends"`
	Estimate *estimate `json:"estimate,omitempty"`
	Limits   []result  `json:"limits,omitempty"`
}

// estimate says by what a cost is reserved that its caller did not give.
type estimate struct {
	Cost     int64  `json:"cost"`
	From     string `json:"from"`
	Settled  int64  `json:"settled"`
	Declared int64  `json:"declared,omitempty"`
	Whole    bool   `json:"whole,omitempty"`
}

func newEstimate(e *reserve.Estimate) *estimate {
	if e == nil {
		return nil
	}
	return &estimate{e.Cost, string(e.From), e.Settled, e.Declared, e.Whole}
}

func newReservation(r *reserve.Reservation) reservation {
	out := reservation{
		ID: r.ID, State: string(r.State), Reserved: r.Reserved, Clamped: r.Clamped, Extended: r.Extended, Used: r.Used,
		Late: r.Late, Ends: r.Ends.UTC(), Estimate: newEstimate(r.Estimate),
	}
	if r.State == reserve.Committed {
		out.Actual = &r.Actual
	}
	return out
}

func (a *api) reserve(w http.ResponseWriter, r *http.Request, src []byte) {
	b, err := parse(src, "attributes", "cost", "declared", "ttl", "charge_expired")
	if err == nil {
		err = a.guess(&b)
	}
	if err != nil {
		answer.WriteError(w, http.StatusBadRequest, err.Error())
		return
	}
	one, d, err := a.opts.Reservations.Reserve(r.Context(), b.request, b.ttl, b.chargeExpired)
	switch {
	case err != nil:
		a.failReservation(w, err)
	case !d.Allowed:
		d.Action = nil // it is for the caller's own client
		answer.WriteRefusal(w, &d, a.opts.Answer)
	default:
		answer.Header(w.Header(), &d, a.opts.Answer)
		out := newReservation(&one)
		out.Limits = newDecision(&d).Limits
		writeJSON(w, out)
	}
}

// guess has the cost of a reservation estimated that has none, if the limits file says how.
func (a *api) guess(b *body) error {
	e := a.engine.Set().Estimates()
	_, twice := b.request.Get(e.Declared)
	switch {
	case b.request.Peek:
		return errors.New("cost is 0, want what is reserved; leave it out to have it estimated")
	case b.declared > 0 && len(e.By) == 0:
		return errors.New("nothing is estimated, so that declared means nothing: reserve it as cost, or add estimates: to the limits file")
	case b.declared > 0 && twice:
		return fmt.Errorf("declared is given, and the attribute %s as well: give one of them", e.Declared)
	case b.declared > 0:
		b.request.Attributes = append(b.request.Attributes, limit.Attribute{Name: e.Declared, Value: strconv.FormatInt(b.declared, 10)})
	}
	if !b.hasCost && len(e.By) > 0 {
		b.request.Cost = 0
	}
	return nil
}

func (a *api) renew(w http.ResponseWriter, r *http.Request, src []byte) {
	var body struct {
		ID   string
		Used *whole
		TTL  *string
	}
	if !readExactly(w, src, &body, `{"id": "...", "used": 100, "ttl": "60s"}`, "id", "used", "ttl") {
		return
	}
	var ttl time.Duration
	var err error
	if body.TTL != nil {
		if ttl, err = time.ParseDuration(*body.TTL); err == nil && ttl == 0 {
			err = errors.New("it is 0")
		}
	}
	switch {
	case err != nil:
		answer.WriteError(w, http.StatusBadRequest, fmt.Sprintf(`"ttl" is %.40q, want a duration such as "60s"`, *body.TTL))
		return
	case body.ID == "":
		answer.WriteError(w, http.StatusBadRequest, noID)
		return
	case body.Used == nil:
		answer.WriteError(w, http.StatusBadRequest, `"used" is missing, want what was used so far`)
		return
	}
	one, err := a.opts.Reservations.Renew(r.Context(), body.ID, int64(*body.Used), ttl)
	a.settled(w, &one, err)
}

func (a *api) commit(w http.ResponseWriter, r *http.Request, src []byte) {
	var body struct {
		ID     string
		Actual *whole
	}
	if !readExactly(w, src, &body, `{"id": "...", "actual": 100}`, "id", "actual") {
		return
	}
	switch {
	case body.ID == "":
		answer.WriteError(w, http.StatusBadRequest, noID)
		return
	case body.Actual == nil:
		answer.WriteError(w, http.StatusBadRequest, `"actual" is missing, want what was used`)
		return
	}
	one, err := a.opts.Reservations.Commit(r.Context(), body.ID, int64(*body.Actual))
	a.settled(w, &one, err)
}

func (a *api) release(w http.ResponseWriter, r *http.Request, src []byte) {
	var body struct{ ID string }
	if !readExactly(w, src, &body, `{"id": "..."}`, "id") {
		return
	}
	if body.ID == "" {
		answer.WriteError(w, http.StatusBadRequest, noID)
		return
	}
	one, err := a.opts.Reservations.Release(r.Context(), body.ID)
	a.settled(w, &one, err)
}

func (a *api) settled(w http.ResponseWriter, one *reserve.Reservation, err error) {
	if err != nil {
		a.failReservation(w, err)
		return
	}
	writeJSON(w, newReservation(one))
}

// noID answers a call that says no reservation.
const noID = `"id" is missing, want that of the answer to /v1/reserve`

// whole is a number of a body that [wholeNumber] reads.
type whole int64

// UnmarshalJSON implements [json.Unmarshaler].
func (n *whole) UnmarshalJSON(text []byte) error {
	v, ok := uint64(0), false
	what := map[byte]string{'"': "string", '{': "object", '[': "list", 't': "bool", 'f': "bool"}[text[0]]
	if what == "" {
		v, ok = wholeNumber(string(text))
		what = "number " + string(text[:min(len(text), 40)])
	}
	if !ok || v > limit.MaxCount {
		return &json.UnmarshalTypeError{Value: what, Type: reflect.TypeFor[int64]()}
	}
	*n = whole(v)
	return nil
}

// readExactly reads a body that has nothing but the fields of to, by these names and once each; it answers those that have
// something else.
func readExactly(w http.ResponseWriter, src []byte, to any, want string, fields ...string) bool {
	p := &parser{src: src, dec: json.NewDecoder(bytes.NewReader(src))}
	p.dec.UseNumber()
	err := p.object(func(name string) error {
		if !slices.Contains(fields, name) {
			return p.fail(p.at, "unknown field %q", name)
		}
		_, err := p.token()
		return err
	})
	if err == nil {
		if _, end := p.token(); !errors.Is(end, io.EOF) {
			err = p.fail(p.at, "it goes on after its end")
		}
	}
	if err == nil {
		err = json.Unmarshal(src, to)
	}
	if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) && wrong.Field != "" {
		err = fmt.Errorf("%q cannot be a %s", strings.ToLower(wrong.Field), wrong.Value)
	}
	if err != nil {
		answer.WriteError(w, http.StatusBadRequest, fmt.Sprintf("the body cannot be read, want %s with whole numbers: %v", want, err))
		return false
	}
	return true
}

func (a *api) failReservation(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, reserve.ErrUnknown):
		answer.WriteError(w, http.StatusNotFound, err.Error())
	case errors.Is(err, reserve.ErrSettled):
		answer.WriteError(w, http.StatusConflict, err.Error())
	case errors.Is(err, reserve.ErrBad):
		answer.WriteError(w, http.StatusBadRequest, err.Error())
	case errors.Is(err, store.ErrFull):
		answer.WriteError(w, http.StatusServiceUnavailable, "too many reservations are open")
	default:
		a.fail(w, err)
	}
}
