package proxy

import (
	"net/http"
	"strings"

	"github.com/stint-io/stint/throttle"
)

// vouched are the header fields that servers behind believe because the proxy has set them.
var vouched = [...]string{
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", throttle.Header,
}

// withoutLookalikes removes fields that many servers take for a vouched one: CGI, and what came after it,
// make one variable of X_Forwarded_For and X-Forwarded-For.
func withoutLookalikes(h http.Header) {
	for name := range h {
		if strings.IndexByte(name, '_') >= 0 && isVouched(strings.ReplaceAll(name, "_", "-")) {
			delete(h, name)
		}
	}
}

// withoutVouched removes vouched fields, and those that look like them, from a trailer: some servers add
// it to the header. No proxy writes them there.
func withoutVouched(trailer http.Header) {
	for name := range trailer {
		if isVouched(strings.ReplaceAll(name, "_", "-")) {
			delete(trailer, name)
		}
	}
}

func isVouched(name string) bool {
	for _, own := range vouched {
		if strings.EqualFold(name, own) {
			return true
		}
	}
	return false
}
