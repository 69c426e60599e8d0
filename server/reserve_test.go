package server_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/server"
)

const tokenLimits = "limits: [{name: tokens, key: [tenant], rate: 1000/hour, algorithm: fixed_window}]\n"

type reservationAnswer struct {
	ID       string
	State    string
	Reserved int64
	Clamped  bool
	Extended bool
	Used     int64
	Actual   *int64
	Limits   []struct{ Remaining int64 }
}

// A reservation is made at one server and settled at another that shares its Redis, once however often; what is
// wrong is refused with a status that says why.
func TestReserve(t *testing.T) {
	r := redistest.Start(t)
	shared := func(o *server.Options) { o.Store = "redis://" + r.Addr() + "?timeout=10s" }
	a, b := start(t, tokenLimits, shared), start(t, tokenLimits, shared)
	read := func(got answer) (out reservationAnswer) {
		t.Helper()
		if err := json.Unmarshal([]byte(got.body), &out); err != nil || got.status != http.StatusOK {
			t.Fatal(got.status, got.body, err)
		}
		return out
	}
	one := read(a.post("/v1/reserve", `{"attributes":{"tenant":"acme"},"cost":800,"ttl":"60s"}`))
	if one.ID == "" || one.State != "open" || one.Reserved != 800 || one.Limits[0].Remaining != 200 {
		t.Errorf("%+v", one)
	}
	if got := b.post("/v1/reserve", `{"attributes":{"tenant":"acme"},"cost":300}`); got.status != http.StatusTooManyRequests || !strings.Contains(got.body, "rate_exceeded") {
		t.Errorf("%+v", got)
	}
	for range 2 {
		if done := read(b.post("/v1/commit", `{"id":"`+one.ID+`","actual":100}`)); done.State != "committed" || *done.Actual != 100 {
			t.Errorf("%+v", done)
		}
	}
	big := read(b.post("/v1/reserve", `{"attributes":{"tenant":"other"},"cost":5000}`))
	if !big.Clamped || big.Reserved != 1000 {
		t.Errorf("%+v", big)
	}
	read(a.post("/v1/release", `{"id":"`+big.ID+`"}`))
	if again := read(a.post("/v1/reserve", `{"attributes":{"tenant":"acme"},"cost":900}`)); again.Limits[0].Remaining != 0 {
		t.Errorf("%+v", again)
	}
	for body, status := range map[string]int{
		`{"id":"` + one.ID + `","actual":101}`:                 http.StatusConflict,
		`{"id":"stranger","actual":1}`:                         http.StatusNotFound,
		`{"id":"` + one.ID + `"}`:                              http.StatusBadRequest,
		`{"id":"` + one.ID + `","actual":NaN}`:                 http.StatusBadRequest,
		`{"id":"` + one.ID + `","actual":-1}`:                  http.StatusBadRequest,
		`{"id":"` + one.ID + `","actual":1.5}`:                 http.StatusBadRequest,
		`{"id":"` + one.ID + `","actual":9223372036854775808}`: http.StatusBadRequest,
		`{"id":"` + one.ID + `","actual":1,"x":1}`:             http.StatusBadRequest,
		`{"id":"` + one.ID + `","actual":100}}`:                http.StatusBadRequest,
		`{"id":"` + one.ID + `","actual":1,"actual":100}`:      http.StatusBadRequest,
		`{"id":"` + one.ID + `","ACTUAL":100}`:                 http.StatusBadRequest,
		`{"id":{"actual":100}}`:                                http.StatusBadRequest,
		`{"id":7,"actual":1}`:                                  http.StatusBadRequest,
		`[]`:                                                   http.StatusBadRequest,
	} {
		if got := a.post("/v1/commit", body); got.status != status {
			t.Errorf("%s: %d %s, want %d", body, got.status, got.body, status)
		}
	}
	for _, body := range []string{`{"attributes":{"tenant":"x"},"cost":0}`, `{"attributes":{"tenant":"x"},"cost":1,"ttl":"2h"}`, `{"attributes":{"tenant":"x"},"cost":1,"ttl":"soon"}`, `{"attributes":{"tenant":"x"},"ttl":60}`} {
		if got := a.post("/v1/reserve", body); got.status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
}

// A renewal says what was used, at any server that shares the Redis; what is wrong changes nothing.
func TestRenew(t *testing.T) {
	r := redistest.Start(t)
	shared := func(o *server.Options) { o.Store = "redis://" + r.Addr() + "?timeout=10s" }
	a, b := start(t, tokenLimits, shared), start(t, tokenLimits, shared)
	read := func(got answer) (out reservationAnswer) {
		t.Helper()
		if err := json.Unmarshal([]byte(got.body), &out); err != nil || got.status != http.StatusOK {
			t.Fatal(got.status, got.body, err)
		}
		return out
	}
	one := read(a.post("/v1/reserve", `{"attributes":{"tenant":"acme"},"cost":100,"ttl":"60s"}`))
	if got := read(b.post("/v1/renew", `{"id":"`+one.ID+`","used":64}`)); got.State != "open" || got.Used != 64 || got.Reserved != 100 || got.Extended {
		t.Errorf("%+v", got)
	}
	for range 2 {
		if got := read(b.post("/v1/renew", `{"id":"`+one.ID+`","used":300,"ttl":"2m"}`)); got.Used != 300 || got.Reserved != 300 || !got.Extended {
			t.Errorf("%+v", got)
		}
	}
	for body, status := range map[string]int{
		`{"id":"stranger","used":1}`:                           http.StatusNotFound,
		`{"id":"` + one.ID + `"}`:                              http.StatusBadRequest,
		`{"id":"` + one.ID + `","used":-1}`:                    http.StatusBadRequest,
		`{"id":"` + one.ID + `","used":NaN}`:                   http.StatusBadRequest,
		`{"id":"` + one.ID + `","used":9223372036854775808}`:   http.StatusBadRequest,
		`{"id":"` + one.ID + `","used":4611686018427387905}`:   http.StatusBadRequest,
		`{"id":"` + one.ID + `","used":900,"ttl":"0s"}`:        http.StatusBadRequest,
		`{"id":"` + one.ID + `","used":900,"ttl":"-5s"}`:       http.StatusBadRequest,
		`{"id":"` + one.ID + `","used":900,"ttl":"87600h"}`:    http.StatusBadRequest,
		`{"id":"` + one.ID + `","used":900,"ttl":""}`:          http.StatusBadRequest,
		`{"id":"` + one.ID + `","used":900,"ttl":60}`:          http.StatusBadRequest,
		`{"id":"` + one.ID + `","used":900,"actual":1}`:        http.StatusBadRequest,
		`{"id":"` + one.ID + `","used":900,"ttl":"1s"} more`:   http.StatusBadRequest,
		`{"id":"` + one.ID[1:] + `","used":900,"ttl":"60s"}`:   http.StatusNotFound,
		`{"id":"` + one.ID + `\u0000","used":900,"ttl":"60s"}`: http.StatusNotFound,
	} {
		if got := a.post("/v1/renew", body); got.status != status {
			t.Errorf("%s: %d %s, want %d", body, got.status, got.body, status)
		}
	}
	if again := read(a.post("/v1/reserve", `{"attributes":{"tenant":"acme"},"cost":600}`)); again.Limits[0].Remaining != 100 {
		t.Errorf("%+v", again)
	}
	if done := read(a.post("/v1/commit", `{"id":"`+one.ID+`","actual":250}`)); *done.Actual != 250 {
		t.Errorf("%+v", done)
	}
	if got := b.post("/v1/renew", `{"id":"`+one.ID+`","used":400}`); got.status != http.StatusConflict {
		t.Errorf("%+v", got)
	}
}
