package outgoing_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/stint-io/stint/middleware/outgoing"
)

// A client of any other protocol says what is to be sent, sends it, and says how that went.
func ExampleGuard_Do() {
	guard, err := outgoing.New(outgoing.Policy{Retry: outgoing.Retry{Reserve: 1}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := outgoing.WithCriticality(context.Background(), outgoing.Sheddable)
	var answer string
	attempt, err := guard.Do(ctx, outgoing.Call{Host: "db1:5432"}, func(n int) outgoing.Result {
		var err error
		if answer, err = query(n); errors.Is(err, errBusy) {
			return outgoing.Result{Outcome: outgoing.Refused, Again: true}
		}
		return outgoing.Result{Outcome: outgoing.Accepted}
	})
	if err != nil {
		fmt.Println(err) // an *outgoing.Refusal says why it was not sent
		return
	}
	attempt.Release()
	fmt.Println(answer, guard.Stats().Retries)
	// Output: answer 2 1
}

var errBusy = errors.New("server busy")

// query is refused once.
func query(n int) (string, error) {
	if n == 1 {
		return "", errBusy
	}
	return fmt.Sprint("answer ", n), nil
}
