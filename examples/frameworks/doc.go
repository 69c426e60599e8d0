// Package frameworks protects servers of chi, echo, gin and fiber with the middleware for net/http. Each file is a whole
// server: one limit for each user, and another for one of its routes. README.md shows the lines that matter.
package frameworks

import (
	"net/http"

	"github.com/stint-io/stint"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httplimit"
)

// limits admits three requests an hour from each user, and one of them to /export/{id}, whatever the id is.
const limits = `
limits:
  - {name: per-user, key: [key], rate: 3/hour}
  - {name: export, match: {route: "/export/*"}, key: [key], rate: 1/hour}
`

// middleware returns one that asks the limits above. route says which route a request has; nil = it is not known.
func middleware(route func(*http.Request) string) (func(http.Handler) http.Handler, error) {
	limiter, err := stint.Parse(limits)
	if err != nil {
		return nil, err
	}
	options := []httplimit.Option{httplimit.WithKey(user)}
	if route != nil {
		options = append(options, httplimit.WithAttributes(func(r *http.Request) []limit.Attribute {
			return []limit.Attribute{{Name: "route", Value: route(r)}}
		}))
	}
	return httplimit.New(limiter, options...), nil
}

// user says who sends a request. A real server has checked a password or a token before.
func user(r *http.Request) string {
	name, _, _ := r.BasicAuth()
	return name
}
