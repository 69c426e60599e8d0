package limit

// Action says how a limit wants a request over it to be answered: its on_exceed. The zero value is
// a refusal with 429 and a problem document. An Action is shared by all decisions of a limit, so it
// is read-only.
type Action struct {
	// Status is the HTTP status, from 300 to 599; 0 = 429.
	Status int

	// Location is where the client is sent, with a Status from 300 to 399; "" = nowhere. Doors other
	// than HTTP refuse, and say the place as well as they can.
	Location string

	// Body replaces the problem document, if HasBody is set; ContentType is its type.
	Body        string
	ContentType string
	HasBody     bool

	// Header has further header fields of the answer.
	Header []Attribute
}

// DegradedHeader is the header field that a request over a limit with on_exceed: tag gets, unless
// the limit names another: its value is the name of the limit. Who serves the request may serve
// less.
const DegradedHeader = "X-RateLimit-Degraded"
