package rules_test

import (
	"fmt"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

func ExampleSet_Match() {
	set, err := rules.Parse("stint.yaml", []byte(`
limits:
  - name: api-per-user
    match: {path: /api/*}
    key: [user]
    rate: 100/s
    overrides:
      - when: {user: acme}
        rate: 5000/s
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	found, _ := set.Match("", []limit.Attribute{
		{Name: "path", Value: "/api/orders"},
		{Name: "user", Value: "acme"},
	}, nil, nil)
	for _, m := range found {
		fmt.Println(m.Limit.Name, m.Limit.KeyText(m.Key), m.Variant.Policy.Rate, m.Variant.Detail)
	}
	// Output: api-per-user user="acme" 5000/s override when user=acme
}

func ExampleParse_fault() {
	_, err := rules.Parse("stint.yaml", []byte(`limits:
  - name: api
    raet: 100/s
    unlimited: true
`))
	fmt.Println(err)
	// Output:
	// stint.yaml:3:5: unknown key "raet" in a limit
	//   3 |     raet: 100/s
	//     |     ^
	//   hint: did you mean rate?
}
