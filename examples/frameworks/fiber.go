package frameworks

import (
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
)

// Fiber is a server of fiber. fiber knows the route only in the handler, so the limits of a route are a middleware of that
// route.
func Fiber() (*fiber.App, error) {
	protect, err := middleware(func(r *http.Request) string { return r.URL.Path })
	if err != nil {
		return nil, err
	}
	limited := adaptor.HTTPMiddleware(protect)
	app := fiber.New()
	app.Get("/hello", limited, func(c fiber.Ctx) error { return c.SendString("hello") })
	app.Get("/export/:id", limited, func(c fiber.Ctx) error { return c.SendString(c.Params("id")) })
	return app, nil
}
