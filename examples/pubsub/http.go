package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/stint-io/stint/fanout"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httplimit"
)

const (
	// maxMessage is the size of a message. A page of history has to fit one of NATS.
	maxMessage = 16 << 10
	// publishWait is how long the home of a channel has to answer.
	publishWait = 2 * time.Second
	// writeWait is how long a subscriber may take none of what is sent.
	writeWait = 10 * time.Second
	// keepAlive is how often a silent stream says that it is there.
	keepAlive = 15 * time.Second
)

type contextKey int

const (
	connectionKey contextKey = iota
	publicationKey
)

// publication is what a request is about.
type publication struct {
	channelName
	cost int64 // of a publish, as it was decided
}

// handler is the API of a node.
func (n *Node) handler() http.Handler {
	described := httplimit.WithAttributes(describe)
	// A message costs one for itself and one for each subscriber at this moment.
	cost := httplimit.WithCost(func(r *http.Request) int64 {
		p := r.Context().Value(publicationKey).(*publication)
		p.cost = 1 + n.presence.subscribers(p.channelName)
		return p.cost
	})
	publish := httplimit.New(observed{n.takers.publish, n.ledger.decided}, described, cost)
	attach := httplimit.New(observedFinisher{n.takers.attach, n.ledger}, described)
	mux := http.NewServeMux()
	mux.Handle("POST /channels/{channel}/messages", names(publish(http.HandlerFunc(n.publish))))
	mux.Handle("GET /channels/{channel}/events", names(attach(http.HandlerFunc(n.events))))
	mux.Handle("GET /channels/{channel}/history", names(http.HandlerFunc(n.history)))
	mux.HandleFunc("GET /live", n.serveLive)
	return mux
}

type observedFinisher struct {
	limit.Finisher
	ledger *ledger
}

func (o observedFinisher) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	return observed{o.Finisher, func(req limit.Request, d limit.Decision) {
		account, _ := req.Get("account")
		o.ledger.refused(account, d)
	}}.Take(ctx, req)
}

// names checks the names of account and channel before any limit is asked about them.
func names(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := channelName{Account: r.URL.Query().Get("account"), Channel: r.PathValue("channel")}
		if !wellFormed(c.Account) || !wellFormed(c.Channel) {
			fail(w, http.StatusBadRequest, "want ?account= and a channel of 1 to 64 letters, digits, - and _")
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), publicationKey, &publication{channelName: c})))
	})
}

func named(r *http.Request) channelName {
	return r.Context().Value(publicationKey).(*publication).channelName
}

func describe(r *http.Request) []limit.Attribute {
	c := named(r)
	connection, _ := r.Context().Value(connectionKey).(string)
	return []limit.Attribute{{Name: "account", Value: c.Account}, {Name: "channel", Value: c.Channel}, {Name: "connection", Value: connection}}
}

// numbered gives each connection a name: the limit of a connection goes by it.
func numbered() func(context.Context, net.Conn) context.Context {
	var serial atomic.Uint64
	return func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey, strconv.FormatUint(serial.Add(1), 10))
	}
}

// published answers a publish.
type published struct {
	Position uint64 `json:"position"`
	Cost     int64  `json:"cost"` // 1 and one for each subscriber
	At       int64  `json:"at"`   // when it was admitted, in nanoseconds since the Unix epoch
}

func (n *Node) publish(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err != nil || !utf8.Valid(body) {
		fail(w, http.StatusBadRequest, fmt.Sprintf("want a message of UTF-8, of at most %d bytes", maxMessage))
		return
	}
	answer, err := n.askHome(r.Context(), homeRequest{
		Op: opPublish, Channel: named(r), Message: message{At: at.UnixNano(), Data: string(body)},
	})
	switch {
	case err != nil:
		// Whether it was published is not known, so a second try may be a second message.
		fail(w, http.StatusServiceUnavailable, "the channel's node does not answer: "+err.Error())
	case answer.Error != "":
		fail(w, http.StatusServiceUnavailable, answer.Error)
	default:
		p := r.Context().Value(publicationKey).(*publication)
		writeJSON(w, http.StatusOK, published{answer.Position, p.cost, at.UnixNano()})
	}
}

func (n *Node) history(w http.ResponseWriter, r *http.Request) {
	from, errFrom := position(r, "from", 0)
	to, errTo := position(r, "to", 1<<63)
	if errFrom != nil || errTo != nil || from > to {
		fail(w, http.StatusBadRequest, "want from= and to= as positions, from at most to")
		return
	}
	answer, err := n.askHome(r.Context(), homeRequest{Op: opHistory, Channel: named(r), From: from, To: to})
	if err != nil {
		fail(w, http.StatusServiceUnavailable, "the channel's node does not answer: "+err.Error())
		return
	}
	writeJSON(w, http.StatusOK, answer.Page)
}

func position(r *http.Request, name string, otherwise uint64) (uint64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	return strconv.ParseUint(text, 10, 64)
}

// events is the stream of a subscriber.
func (n *Node) events(w http.ResponseWriter, r *http.Request) {
	c := named(r)
	seen, errSeen := uint64(0), error(nil)
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		seen, errSeen = strconv.ParseUint(id, 10, 64)
	}
	if errSeen != nil {
		fail(w, http.StatusBadRequest, "want Last-Event-ID as a position")
		return
	}
	out, err := n.takers.subscriber()
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	stream, err := n.hubs.join(c, fanout.StreamOptions{Limit: out})
	if err != nil {
		fail(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer n.hubs.leave(c, stream)
	answer, err := n.askHome(r.Context(), homeRequest{Op: opHead, Channel: c})
	if err != nil {
		fail(w, http.StatusServiceUnavailable, "the channel's node does not answer: "+err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	s := &eventWriter{w: w, control: http.NewResponseController(w), channel: c, ledger: n.ledger}
	if err := s.begin(seen, answer.Position); err == nil {
		s.copy(r.Context(), stream, answer.Position)
	}
}

// eventWriter writes events to one subscriber.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	channel channelName
	ledger  *ledger
	text    []byte
}

// begin tells the subscriber where it begins, and what it missed since it was here last.
func (s *eventWriter) begin(seen, head uint64) error {
	s.event("attached", head, map[string]uint64{"position": head})
	if seen > 0 && seen < head {
		s.event("gap", head, newGapEvent(s.channel, fanout.Gap{From: seen + 1, To: head, Dropped: head - seen, Limit: "connection"}))
	}
	return s.flush()
}

// copy sends what comes, but for what the beginning has told of, until the subscriber or
// the stream ends.
func (s *eventWriter) copy(ctx context.Context, stream *subscription, told uint64) {
	for {
		quiet, cancel := context.WithTimeout(ctx, keepAlive)
		e, err := stream.Next(quiet)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, context.DeadlineExceeded):
			s.text = append(s.text, ":\n\n"...)
		case err != nil:
			return
		}
		sent := time.Duration(0)
		if e.Gap.Dropped > 0 {
			s.event("gap", e.Gap.To, newGapEvent(s.channel, e.Gap))
			s.ledger.note(s.channel.Account, func(a *entry) { a.Dropped += int64(e.Gap.Dropped) })
		}
		if e.Message && e.Position > told {
			s.event("message", e.Position, e.Value)
			sent = 1
		}
		if s.flush() != nil {
			return
		}
		if sent > 0 {
			took := time.Duration(time.Now().UnixNano() - e.Value.At)
			s.ledger.note(s.channel.Account, func(a *entry) {
				a.Delivered++
				a.Latency.add(took)
			})
		}
	}
}

func (s *eventWriter) event(kind string, id uint64, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		return // nothing that is sent here fails
	}
	s.text = fmt.Appendf(s.text, "event: %s\nid: %d\ndata: %s\n\n", kind, id, data)
}

func (s *eventWriter) flush() error {
	if len(s.text) == 0 {
		return nil
	}
	if err := s.control.SetWriteDeadline(time.Now().Add(writeWait)); err != nil {
		return err
	}
	_, err := s.w.Write(s.text)
	s.text = s.text[:0]
	if err != nil {
		return err
	}
	return s.control.Flush()
}

// fail answers with a problem document, as refusals are.
func fail(w http.ResponseWriter, status int, detail string) {
	text, err := json.Marshal(map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": detail})
	if err != nil {
		text = nil
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}
