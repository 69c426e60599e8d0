package share

import (
	"fmt"
	"os"
	"time"
)

func (f *fleet) trace(format string, args ...any) {
	if os.Getenv("TRACE") != "" {
		fmt.Printf("%v %s\n", time.Duration(f.now)-time.Hour, fmt.Sprintf(format, args...))
	}
}
