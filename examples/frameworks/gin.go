package frameworks

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"
)

type ginRoute struct{}

// Gin is a server of gin.
func Gin() (http.Handler, error) {
	protect, err := middleware(func(r *http.Request) string {
		route, _ := r.Context().Value(ginRoute{}).(string)
		return route
	})
	if err != nil {
		return nil, err
	}
	gin.SetMode(gin.ReleaseMode)
	server := gin.New()
	server.Use(wrap(protect))
	server.GET("/hello", func(c *gin.Context) { c.String(http.StatusOK, "hello") })
	server.GET("/export/:id", func(c *gin.Context) { c.String(http.StatusOK, c.Param("id")) })
	return server, nil
}

// wrap makes a middleware for net/http one of gin. Without Abort gin would run the handler of a request that was refused.
func wrap(protect func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		admitted := false
		next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			admitted = true
			c.Request = r
			c.Next()
		})
		r := c.Request.WithContext(context.WithValue(c.Request.Context(), ginRoute{}, c.FullPath()))
		protect(next).ServeHTTP(c.Writer, r)
		if !admitted {
			c.Abort()
		}
	}
}
