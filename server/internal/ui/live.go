package ui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/stint-io/stint/internal/answer"
)

const (
	// every is how often a page is looked at for changes.
	every = time.Second
	// streamFor is how long one stream of changes lasts. The browser then asks for the next one, and who asks is
	// checked again.
	streamFor = 5 * time.Minute
)

// change is what a stream sends: which elements each container has, if that has changed, and those that are new or
// not as they were.
type change struct {
	Order map[string][]string `json:"order,omitempty"`
	HTML  map[string]string   `json:"html,omitempty"`
}

// shown is what a page shows.
type shown struct {
	order map[string][]string
	html  map[string]string
}

func shownOf(parts []part) shown {
	s := shown{map[string][]string{}, map[string]string{}}
	for _, p := range parts {
		s.order[p.into] = append(s.order[p.into], p.id)
		s.html[p.id] = string(p.html)
	}
	return s
}

// since returns what has changed.
func (s shown) since(before shown) (c change) {
	c = change{map[string][]string{}, map[string]string{}}
	for into, ids := range s.order {
		if fmt.Sprint(ids) != fmt.Sprint(before.order[into]) {
			c.Order[into] = ids
		}
	}
	for into := range before.order {
		if s.order[into] == nil {
			c.Order[into] = []string{}
		}
	}
	for id, text := range s.html {
		if before.html[id] != text {
			c.HTML[id] = text
		}
	}
	return c
}

// events streams the changes of a page, which the query names, as Server-Sent Events.
func (u *UI) events(w http.ResponseWriter, r *http.Request) {
	at, err := url.ParseRequestURI(r.URL.Query().Get("of"))
	if err != nil || at.Host != "" || at.Scheme != "" || pages[at.Path] == nil {
		answer.WriteError(w, http.StatusBadRequest, "of is no page of the dashboard")
		return
	}
	select {
	case u.viewers <- struct{}{}:
		defer func() { <-u.viewers }()
	default:
		answer.WriteError(w, http.StatusServiceUnavailable, fmt.Sprintf("%d people look at the dashboard: too many", cap(u.viewers)))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	ask := &request{Request: r.Clone(r.Context()), query: at.Query()}
	t := time.NewTicker(every)
	defer t.Stop()
	end := time.NewTimer(streamFor)
	defer end.Stop()
	var before shown
	for {
		is := shownOf(append(u.status(), pages[at.Path].live(u, ask)...))
		c := is.since(before)
		before = is
		text := []byte(": nothing new\n\n")
		if len(c.HTML)+len(c.Order) > 0 {
			data, err := json.Marshal(c)
			if err != nil {
				return
			}
			text = fmt.Appendf(nil, "data: %s\n\n", data)
		}
		// A stream lives longer than an answer may take otherwise.
		if out.SetWriteDeadline(time.Now().Add(10*time.Second)) != nil {
			return
		}
		if _, err := w.Write(text); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-u.o.Done:
			return
		case <-end.C:
			return
		case <-t.C:
		}
	}
}

// serveTop answers GET /v1/top.
func (u *UI) serveTop(w http.ResponseWriter, r *http.Request) {
	values, err := answer.Parameters(r, "find", "sort", "limits", "keys")
	var q query
	if err == nil {
		q, err = topQuery(values)
	}
	if err != nil {
		answer.WriteError(w, http.StatusBadRequest, err.Error())
		return
	}
	t := u.figures.rows(r.Context(), q)
	out := struct {
		Limits []Row `json:"limits"`
		Total  int   `json:"limits_total"`
		// Errors bound by how much a rate of a key is too high, and what a key that is not listed may have.
		TopError  float64 `json:"top_keys_error"`
		MostError float64 `json:"refused_most_error"`
		One       int     `json:"one_in"`
	}{t.rows, t.total, round(t.top.AdmittedError), round(t.top.RefusedError), t.top.One}
	if out.Limits == nil {
		out.Limits = []Row{}
	}
	text, err := json.Marshal(out)
	if err != nil {
		answer.WriteUnavailable(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// A failed write means that the client has gone.
	_, _ = w.Write(append(answer.Printable(text), '\n'))
}
