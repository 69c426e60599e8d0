package httplimit_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httplimit"
)

func ExampleNew() {
	// Any limit.Taker will do: an engine on a store, a leasing client.
	var taker limit.Taker = &budget{size: 1}

	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	server := httptest.NewServer(httplimit.New(taker)(handler))
	defer server.Close()

	for range 2 {
		resp, err := http.Get(server.URL)
		if err != nil {
			fmt.Println(err)
			return
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Printf("%s, retry after %q\n", resp.Status, resp.Header.Get("Retry-After"))
		fmt.Print(string(body))
	}
	// Output:
	// 200 OK, retry after ""
	// hello
	// 429 Too Many Requests, retry after "7"
	// {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"limit 'per-ip' refused the request: its rate is used up; retry after 7 s","violated-policies":["per-ip"],"reason":"rate_exceeded","retry_after":6.5}
}

func ExampleWithRequestAttributes() {
	var taker limit.Taker = &budget{size: 100}

	// A limit with key: [header:x-api-key] counts for each key; a limit with
	// key: [user] for each user that the outer handler has found.
	protect := httplimit.New(taker,
		httplimit.WithRequestAttributes("header:x-api-key"),
		httplimit.WithAttributes(func(r *http.Request) []limit.Attribute {
			return []limit.Attribute{{Name: "user", Value: r.PathValue("user")}}
		}))

	mux := http.NewServeMux()
	mux.Handle("GET /users/{user}", protect(http.NotFoundHandler()))
}

// Each user has a limit, and who is none has one for all.
func ExampleWithKey() {
	var taker limit.Taker = &budget{size: 100} // such as stint.Per("key", "100/s", stint.WithBurst(200))

	protect := httplimit.New(taker, httplimit.WithKey(func(r *http.Request) string {
		user, _, _ := r.BasicAuth()
		return user
	}))
	mux := http.NewServeMux()
	mux.Handle("/", protect(http.NotFoundHandler()))
}
