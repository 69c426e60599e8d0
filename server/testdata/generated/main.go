// Command generated asks a service through the client that openapi-generator has made of its document. Its arguments are
// the addresses of the HTTP and of the admin port.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"

	"generated/stint"
)

func main() {
	log.SetFlags(0)
	ctx, calls, operators := context.Background(), client(os.Args[1]), client(os.Args[2])

	body := stint.NewTakeRequest()
	body.SetAttributes(map[string]string{"customer": "acme", "path": "/one"})
	d, _, err := calls.DecisionsAPI.Take(ctx).TakeRequest(*body).Execute()
	check("take", err)
	fmt.Println("take", d.Allowed, d.Limits[len(d.Limits)-1].Remaining)

	_, answer, err := calls.DecisionsAPI.Take(ctx).TakeRequest(*body).Execute()
	var refused *stint.GenericOpenAPIError
	if !errors.As(err, &refused) || answer.StatusCode != http.StatusTooManyRequests {
		log.Fatalf("the second take: %v", err)
	}
	why := refused.Model().(stint.Refusal)
	fmt.Println("refused", why.ViolatedPolicies, why.Reason)

	reserve := stint.NewReserveRequest()
	reserve.SetAttributes(map[string]string{"tenant": "acme"})
	reserve.SetCost(800)
	reserve.SetTtl("10s")
	r, _, err := calls.ReservationsAPI.Reserve(ctx).ReserveRequest(*reserve).Execute()
	check("reserve", err)
	done, _, err := calls.ReservationsAPI.Commit(ctx).CommitRequest(*stint.NewCommitRequest(r.Id, 312)).Execute()
	check("commit", err)
	fmt.Println("commit", done.State, done.GetActual())

	u, _, err := calls.DecisionsAPI.GetUsage(ctx).Limit("tokens").By("month").Execute()
	check("getUsage", err)
	fmt.Println("used", u.Usage[0].Used)

	c, _, err := operators.CustomersAPI.SetCustomer(ctx).Customer("initech").Plan("pro").Count([]string{"messages=120%"}).Execute()
	check("setCustomer", err)
	fmt.Println("customer", c.Plan, "before", c.Before)
	k, _, err := operators.KeysAPI.GetKey(ctx).Limit("month").Key([]string{"customer=acme"}).Execute()
	check("getKey", err)
	fmt.Println("key", k.Counters[0].Quota)
	top, _, err := operators.OperationAPI.GetTop(ctx).Find("render").Execute()
	check("getTop", err)
	fmt.Println("top", top.Limits[0].Limit)
}

// client returns a client of one port.
func client(address string) *stint.APIClient {
	c := stint.NewConfiguration()
	c.Servers[0].Variables["address"] = stint.ServerVariable{DefaultValue: address}
	return stint.NewAPIClient(c)
}

func check(call string, err error) {
	if err != nil {
		log.Fatalf("%s: %v", call, err)
	}
}
