package proxy

import (
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/server"
)

type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An upstream is taken out by the second examination in a row that fails, and not by fewer, however often one fails
// between others that succeed; and the first that succeeds has it back.
func TestTwoFailuresInARow(t *testing.T) {
	for seed := range seeding.Draw(t, 50) {
		r := rand.New(rand.NewPCG(seed, 4))
		p, err := newPool(&Options{Upstreams: []string{"http://upstream"}, Health: Health{Path: "/healthz"}, Decide: server.Options{Logger: slog.New(slog.DiscardHandler)}})
		if err != nil {
			t.Fatal(err)
		}
		status, u := 0, p.all[0]
		u.plain = answers(func(r *http.Request) (*http.Response, error) {
			if status == 0 {
				return nil, errors.New("no route")
			}
			return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
		})
		often, failed, out := r.Float64(), 0, false
		for i := range 60 {
			if r.Float64() < often {
				status = []int{0, 400, 500 + r.IntN(100)}[r.IntN(3)]
				failed++
			} else {
				status, failed = 200+r.IntN(200), 0
			}
			out = failed >= 2 || out && failed > 0
			if p.examine(t.Context(), u); u.out.Load() != out {
				t.Fatalf("seed %d, examination %d: status %d, the %d-th failure in a row: out is %v", seed, i, status, failed, !out)
			}
		}
	}
}
