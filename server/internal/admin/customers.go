package admin

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/plans"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Plan is a plan, as GET /v1/admin/plans lists it.
type Plan struct {
	Name    string      `json:"name"`
	Default bool        `json:"default,omitempty"`
	Limits  []PlanLimit `json:"limits"`
}

// PlanLimit is a limit of a plan. Budget is the name by which a customer may have another count; "" = none may.
type PlanLimit struct {
	Name   string `json:"name"`
	Policy string `json:"policy"`
	Budget string `json:"budget,omitempty"`
}

// Assigned is a limit whose count the plans of customers hand out.
type Assigned struct {
	Limit string `json:"limit"`
	// Count is what the limit has, and Assigned what Customers customers with a plan of their own may use together, by the
	// limits of plans that are called Budgets.
	Count     int64    `json:"count"`
	Assigned  int64    `json:"assigned"`
	Customers int      `json:"customers"`
	Budgets   []string `json:"budgets"`
	Over      bool     `json:"over"`
}

// String says it in words.
func (a Assigned) String() string {
	text := fmt.Sprintf("%s of the plans of %d customers come to %d, and limit %q has %d", strings.Join(a.Budgets, " and "), a.Customers, a.Assigned, a.Limit, a.Count)
	if a.Over {
		text += ": it is over-subscribed, and customers are refused within their plans when they use them up"
	}
	return text
}

// The bounds of a page of customers.
const usualCustomers, maxCustomers = 100, 1000

// CustomerHandler answers GET /v1/admin/plans, and GET, PUT and DELETE /v1/admin/customers: which plan a customer has.
// who says who sends a request; nil = its address.
func CustomerHandler(desk *plans.Desk, list func() ([]Plan, []Assigned), who func(*http.Request) string) http.Handler {
	if who == nil {
		who = func(r *http.Request) string { return "admin from " + r.RemoteAddr }
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/admin/plans", func(w http.ResponseWriter, _ *http.Request) {
		all, assigned := list()
		writeJSON(w, struct {
			Plans    []Plan     `json:"plans"`
			Assigned []Assigned `json:"assigned,omitempty"`
		}{append([]Plan{}, all...), assigned})
	})
	mux.HandleFunc("GET /v1/admin/customers", func(w http.ResponseWriter, r *http.Request) { getCustomers(w, r, desk) })
	mux.HandleFunc("PUT /v1/admin/customers", func(w http.ResponseWriter, r *http.Request) {
		q, err := answer.Parameters(r, "customer", "plan", "until", "then", "count")
		var a plans.Assignment
		if err == nil {
			a, err = assignment(q)
		}
		if err != nil {
			answer.WriteError(w, http.StatusBadRequest, err.Error())
			return
		}
		c, err := desk.Set(r.Context(), q.Get("customer"), a, who(r))
		if err != nil {
			failCustomers(w, err)
			return
		}
		writeJSON(w, c)
	})
	mux.HandleFunc("DELETE /v1/admin/customers", func(w http.ResponseWriter, r *http.Request) {
		q, err := answer.Parameters(r, "customer")
		if err != nil {
			answer.WriteError(w, http.StatusBadRequest, err.Error())
			return
		}
		if err := desk.Remove(r.Context(), q.Get("customer"), who(r)); err != nil {
			failCustomers(w, err)
			return
		}
		writeJSON(w, struct{}{})
	})
	return mux
}

func getCustomers(w http.ResponseWriter, r *http.Request, desk *plans.Desk) {
	q, err := answer.Parameters(r, "customer", "after", "max")
	most := usualCustomers
	if text := q.Get("max"); err == nil && text != "" {
		if most, err = strconv.Atoi(text); err != nil || most < 1 || most > maxCustomers {
			err = fmt.Errorf("max is %.100q, want 1 to %d", text, maxCustomers)
		}
	}
	if err != nil {
		answer.WriteError(w, http.StatusBadRequest, err.Error())
		return
	}
	if q.Has("customer") {
		found, err := desk.Find(r.Context(), q.Get("customer"))
		if err != nil {
			failCustomers(w, err)
			return
		}
		writeJSON(w, found)
		return
	}
	list, next, err := desk.List(r.Context(), q.Get("after"), most)
	if err != nil {
		failCustomers(w, err)
		return
	}
	writeJSON(w, struct {
		Customers []plans.Customer `json:"customers"`
		Next      string           `json:"next,omitempty"`
	}{append([]plans.Customer{}, list...), next})
}

// assignment reads what a customer is to have. A count is NAME=N or NAME=N%, and @ and a time where it ends.
func assignment(q url.Values) (a plans.Assignment, err error) {
	a.Plan, a.Then = q.Get("plan"), q.Get("then")
	if text := q.Get("until"); text != "" {
		if a.Until, err = plans.ParseTime(text); err != nil {
			return a, fmt.Errorf("until: %w", err)
		}
	}
	for _, text := range q["count"] {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return a, fmt.Errorf("count is %.100q, want BUDGET=N or BUDGET=N%%, and @ and a time where it ends", text)
		}
		var c plans.Count
		value, until, ends := strings.Cut(value, "@")
		if ends {
			if c.Until, err = plans.ParseTime(until); err != nil {
				return a, fmt.Errorf("count: %w", err)
			}
		}
		to := &c.N
		if digits, percent := strings.CutSuffix(value, "%"); percent {
			value, to = digits, &c.Percent
		}
		if *to, err = strconv.ParseInt(value, 10, 64); err != nil || *to < 1 {
			return a, fmt.Errorf("the count of %.100s is %.100q, want a number from 1 to %d, or a percentage", name, value, int64(limit.MaxCount))
		}
		if a.Counts == nil {
			a.Counts = make(map[string]plans.Count)
		}
		if _, twice := a.Counts[name]; twice {
			return a, fmt.Errorf("the count of %.100s is given twice", name)
		}
		a.Counts[name] = c
	}
	return a, nil
}

func failCustomers(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	switch {
	case errors.Is(err, plans.ErrBad):
		code = http.StatusBadRequest
	case errors.Is(err, plans.ErrUnknown):
		code = http.StatusNotFound
	case errors.Is(err, plans.ErrConflict):
		code = http.StatusConflict
	case errors.Is(err, store.ErrUnavailable):
		code = http.StatusServiceUnavailable
	case errors.Is(err, store.ErrFull):
		code = http.StatusInsufficientStorage
	}
	answer.WriteError(w, code, err.Error())
}
