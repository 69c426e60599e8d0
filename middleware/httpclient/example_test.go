package httpclient_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httpclient"
	"github.com/stint-io/stint/middleware/outgoing"
)

func ExampleNew() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()

	transport, err := httpclient.New(nil, httpclient.Policy{})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	for range 2 {
		resp, err := client.Get(server.URL)
		var refusal *httpclient.Refusal
		switch {
		case errors.As(err, &refusal):
			fmt.Println("not sent:", refusal.Cause, "for", refusal.RetryAfter().Round(time.Second))
		case err != nil:
			fmt.Println(err)
		default:
			fmt.Println(resp.Status)
			_ = resp.Body.Close()
		}
	}
	// Output:
	// 503 Service Unavailable
	// not sent: held for 30s
}

// A limit of one's own, for which requests wait up to a second; K nearer to 1, so that an overloaded
// server refuses no more than a tenth; no retries, as another layer makes them.
func ExampleNew_policy() {
	own, err := limit.NewLimiter(limit.Policy{Rate: limit.PerSecond(100), Burst: 10})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = httpclient.New(http.DefaultTransport, httpclient.Policy{
		Limit:    own,
		MaxWait:  time.Second,
		Throttle: outgoing.Throttle{K: 1.1},
		Retry:    outgoing.Retry{Attempts: 1},
	})
	fmt.Println(err)

	_, err = httpclient.New(nil, httpclient.Policy{Throttle: outgoing.Throttle{K: 1}})
	fmt.Println(err)
	// Output:
	// <nil>
	// outgoing: the throttle: accepts: K is 1, want 1.1 to 100: with 1 a throttle that has closed never opens
}
