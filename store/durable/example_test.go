package durable_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/durable"
)

// What was used of a month outlives the process.
func Example() {
	folder, err := os.MkdirTemp("", "counts")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	use := func(cost int64) error {
		st, err := durable.Open(durable.Options{Path: filepath.Join(folder, "counts.db")})
		if err != nil {
			return err
		}
		defer st.Close()
		month, err := st.Bind(store.Spec{ID: "month", Policy: limit.Policy{
			Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 1000, Period: 30 * 24 * 60 * 60 * 1e9}, Align: limit.AlignCalendar,
		}})
		if err != nil {
			return err
		}
		charges := []store.Charge{{Counters: month, Key: []byte("ada"), Cost: cost}}
		allowed, err := st.Take(context.Background(), charges)
		fmt.Println(allowed, "left:", charges[0].Verdict.Remaining)
		return err
	}
	for _, cost := range []int64{300, 400, 400} {
		if err := use(cost); err != nil { // each time as another process would
			fmt.Println(err)
		}
	}
	// Output:
	// true left: 700
	// true left: 300
	// false left: 300
}
