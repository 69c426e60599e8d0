package frameworks

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v5"
)

type echoRoute struct{}

// Echo is a server of echo.
func Echo() (http.Handler, error) {
	protect, err := middleware(func(r *http.Request) string {
		route, _ := r.Context().Value(echoRoute{}).(string)
		return route
	})
	if err != nil {
		return nil, err
	}
	server := echo.New()
	server.Use(rememberRoute, echo.WrapMiddleware(protect))
	server.GET("/hello", func(c *echo.Context) error { return c.String(http.StatusOK, "hello") })
	server.GET("/export/:id", func(c *echo.Context) error { return c.String(http.StatusOK, c.Param("id")) })
	return server, nil
}

// rememberRoute puts the route where the limits find it.
func rememberRoute(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c *echo.Context) error {
		r := c.Request()
		c.SetRequest(r.WithContext(context.WithValue(r.Context(), echoRoute{}, c.Path())))
		return next(c)
	}
}
