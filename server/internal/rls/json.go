package rls

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

// MaxBodyBytes bounds the body of POST /json, as a gRPC message is bounded. A proxy takes header fields of 64 KiB, and
// many descriptors may each have one as a value. Each connection may send one.
const MaxBodyBytes = 4 << 20

// errorHeader says in words what the short text of a failed /json leaves out.
const errorHeader = "X-Stint-Error"

// ServeHTTP answers /json as Envoy's service does: any method, any content type,
// a RateLimitRequest in proto3 JSON in; 200 with the response, 429 with the
// response when it is over the limit, 400 "Bad Request" for every error. A body
// above [MaxBodyBytes] is a 413.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes))
	if err != nil {
		code := http.StatusBadRequest
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			code = http.StatusRequestEntityTooLarge
		}
		fail(w, code, err)
		return
	}
	var req pb.RateLimitRequest
	if err := protojson.Unmarshal(body, &req); err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	resp, err := s.ShouldRateLimit(r.Context(), &req)
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	text, err := protojson.Marshal(resp)
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	// protojson varies its spaces on purpose; a fixed form is kinder to clients.
	var out bytes.Buffer
	if err := json.Compact(&out, text); err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	for _, h := range resp.ResponseHeadersToAdd {
		w.Header().Set(h.Key, h.Value)
	}
	switch resp.OverallCode {
	case pb.RateLimitResponse_OK:
	case pb.RateLimitResponse_OVER_LIMIT:
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusTooManyRequests)
	default:
		w.WriteHeader(http.StatusInternalServerError)
	}
	// A failed write means that the client has gone: there is nothing left to do.
	_, _ = w.Write(out.Bytes())
}

func fail(w http.ResponseWriter, code int, err error) {
	text := err.Error()
	if st, ok := status.FromError(err); ok {
		text = st.Message()
	}
	w.Header().Set(errorHeader, printable(text))
	http.Error(w, http.StatusText(code), code)
}

// printable makes text fit for a header field.
func printable(text string) string {
	const most = 300
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, text)
	return text[:min(len(text), most)]
}
