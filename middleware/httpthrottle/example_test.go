package httpthrottle_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/stint-io/stint/middleware/httpthrottle"
	"github.com/stint-io/stint/throttle"
)

func ExampleNew() {
	t, err := throttle.New(throttle.Options{Concurrency: 1, MaxWaiting: 1, MaxWait: 10 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /reports/{id}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "a report") })
	server := httptest.NewServer(httpthrottle.New(t)(mux))
	defer server.Close()

	get := func() {
		resp, err := http.Get(server.URL + "/reports/7")
		if err != nil {
			fmt.Println(err)
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		fmt.Printf("%s\n%s", resp.Status, body)
	}
	get()
	busy, _, _ := t.Start(context.Background(), throttle.Request{})
	get()
	busy.Done()
	// Output:
	// 200 OK
	// a report
	// 503 Service Unavailable
	// {"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporary reduced capacity","status":503,"detail":"limit 'throttle' refused the request: it has waited for as long as it may; retry after 1 s","violated-policies":["throttle"],"reason":"queue_timeout","retry_after":1}
}
