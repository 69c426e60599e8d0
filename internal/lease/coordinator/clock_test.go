package coordinator

import (
	"time"

	"github.com/stint-io/stint/limit"
)

const (
	second = limit.Time(time.Second)
	start  = 1000 * second
)
