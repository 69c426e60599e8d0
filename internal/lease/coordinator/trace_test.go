package coordinator

import (
	"flag"
	"time"
)

var tracing = flag.Bool("trace", false, "log every message of the fleets")

func (f *fleet) trace(format string, args ...any) {
	if *tracing {
		f.t.Logf("%v "+format, append([]any{time.Duration(f.now) - time.Hour}, args...)...)
	}
}
