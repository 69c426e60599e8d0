package rest

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/usage"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// History reads usage, and names the members of the cluster whose usage is missing; [usage.Observer] has it.
type History func(ctx context.Context, q usage.Query, yield func(*usage.Row) error) (missing []string, err error)

// customer is the attribute that ?customer= stands for.
const customer = "customer"

// held is how much of an answer is kept before its status is sent: a fault that shows early is an answer of its own.
const held = 64 << 10

// used is a row on the wire.
type used struct {
	Limit    string            `json:"limit"`
	Key      map[string]string `json:"key"`
	Start    time.Time         `json:"start"`
	Used     uint64            `json:"used"`
	Taken    uint64            `json:"taken"`
	Returned uint64            `json:"returned"`
}

// usageHandler answers GET /v1/usage. Rows are sent as they are read, so that an export of any length takes no memory.
func usageHandler(read History) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			answer.WriteError(w, http.StatusMethodNotAllowed, "use GET")
			return
		}
		if read == nil {
			answer.WriteError(w, http.StatusNotFound, "this service keeps no usage")
			return
		}
		q, format, err := usageQuery(r)
		if err != nil {
			answer.WriteError(w, http.StatusBadRequest, err.Error())
			return
		}
		out := &holding{w: w}
		rows := formats[format](out)
		w.Header().Set("Content-Type", types[format])
		w.Header().Set("Cache-Control", "no-store")
		missing, err := read(r.Context(), q, rows.row)
		if err == nil {
			err = rows.end(missing)
		}
		switch {
		case err == nil:
			_ = out.flush() // a failed write means that the client has gone
		case out.sent:
			panic(http.ErrAbortHandler) // half an answer must not look like a whole one
		case errors.Is(err, store.ErrUnavailable):
			answer.WriteUnavailable(w)
		case errors.Is(err, store.ErrFull): // what this process has counted cannot be recorded
			answer.WriteError(w, http.StatusServiceUnavailable, err.Error())
		default:
			answer.WriteError(w, http.StatusBadRequest, err.Error())
		}
	}
}

func usageQuery(r *http.Request) (q usage.Query, format string, err error) {
	var errs []error
	bad := func(text string, args ...any) { errs = append(errs, fmt.Errorf(text, args...)) }
	values, err := answer.Parameters(r, customer, "key", "limit", "from", "to", "by", "timezone", "format")
	if err != nil {
		return q, "", err
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name][0]
		switch name {
		case customer:
			q.Key = append(q.Key, limit.Attribute{Name: customer, Value: value})
		case "key":
			for _, text := range values[name] {
				attribute, value, ok := strings.Cut(text, "=")
				if !ok || attribute == "" {
					bad("key is %.100q, want NAME=VALUE", text)
				}
				q.Key = append(q.Key, limit.Attribute{Name: attribute, Value: value})
			}
		case "limit":
			q.Limit = value
		case "from":
			q.From, err = moment(value)
		case "to":
			q.To, err = moment(value)
		case "by":
			q.By, err = usage.ParseStep(value)
		case "timezone":
			var zone *time.Location
			if zone, err = limit.LoadZone(value); err == nil {
				q.Zone = func(string) *time.Location { return zone }
			}
		case "format":
			if format = value; formats[format] == nil {
				bad("format is %.100q, want json, jsonl or csv", value)
			}
		}
		if err != nil {
			errs = append(errs, err)
			err = nil
		}
	}
	if format == "" {
		format = "json"
	}
	if !q.To.IsZero() && !q.From.Before(q.To) {
		bad("from is not before to")
	}
	return q, format, errors.Join(errs...)
}

// moment reads a time or a date of UTC.
func moment(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, time.DateOnly, "2006-01"} {
		if t, err := time.Parse(layout, text); err == nil && t.Unix() >= 0 {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%.100q is no time from 1970 on, want one such as 2026-11-01 or 2026-11-01T08:00:00Z", text)
}

// table writes rows, and behind them which members are missing.
type table struct {
	row func(*usage.Row) error
	end func(missing []string) error
}

// incomplete is an object that names the members that are missing.
func incomplete(missing []string) []byte {
	text, _ := json.Marshal(struct {
		Members []string `json:"incomplete"`
	}{missing}) // a list of texts can be written
	return append(answer.Printable(text), '\n')
}

var (
	formats = map[string]func(io.Writer) table{"json": jsonRows, "jsonl": lineRows, "csv": csvRows}
	types   = map[string]string{"json": "application/json", "jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
)

func rowOf(r *usage.Row) ([]byte, error) {
	u := used{Limit: r.Limit, Key: make(map[string]string, len(r.Key)), Start: r.Start, Used: r.Used(), Taken: r.Taken, Returned: r.Returned}
	for _, a := range r.Key {
		u.Key[a.Name] = a.Value
	}
	text, err := json.Marshal(u)
	return answer.Printable(text), err
}

func jsonRows(w io.Writer) table {
	between := `{"usage":[`
	return table{
		row: func(r *usage.Row) error {
			text, err := rowOf(r)
			if err == nil {
				_, err = fmt.Fprintf(w, "%s\n%s", between, text)
			}
			between = ","
			return err
		},
		end: func(missing []string) error {
			if between == "," {
				between = ""
			}
			rest := "}\n"
			if len(missing) > 0 {
				rest = "," + string(incomplete(missing)[1:])
			}
			_, err := io.WriteString(w, between+"]"+rest)
			return err
		},
	}
}

func lineRows(w io.Writer) table {
	return table{
		row: func(r *usage.Row) error {
			text, err := rowOf(r)
			if err == nil {
				_, err = w.Write(append(text, '\n'))
			}
			return err
		},
		end: func(missing []string) error {
			if len(missing) == 0 {
				return nil
			}
			_, err := w.Write(incomplete(missing))
			return err
		},
	}
}

func csvRows(w io.Writer) table {
	c := csv.NewWriter(w)
	head := []string{"limit", "key", "start", "used", "taken", "returned"}
	begin := func() (err error) {
		if head != nil {
			err = c.Write(head)
			head = nil
		}
		return err
	}
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	return table{
		row: func(r *usage.Row) error {
			if err := begin(); err != nil {
				return err
			}
			err := c.Write([]string{cell(r.Limit), cell(r.Subject()), r.Start.Format(time.RFC3339), number(r.Used()), number(r.Taken), number(r.Returned)})
			c.Flush()
			return errors.Join(err, c.Error())
		},
		end: func(missing []string) error {
			err := begin()
			if len(missing) > 0 {
				// No limit has an empty name.
				err = errors.Join(err, c.Write([]string{"", "incomplete: " + strings.Join(missing, " "), "", "", "", ""}))
			}
			c.Flush()
			return errors.Join(err, c.Error())
		},
	}
}

// cell keeps a spreadsheet from taking a name for a formula.
func cell(text string) string {
	if text != "" && strings.ContainsRune("=+-@", rune(text[0])) {
		return "'" + text
	}
	return text
}

// holding keeps the beginning of an answer.
type holding struct {
	w    http.ResponseWriter
	b    bytes.Buffer
	sent bool
}

func (h *holding) Write(p []byte) (int, error) {
	h.b.Write(p)
	if h.b.Len() < held {
		return len(p), nil
	}
	return len(p), h.flush()
}

func (h *holding) flush() error {
	h.sent = true
	_, err := h.w.Write(h.b.Bytes())
	h.b.Reset()
	return err
}
