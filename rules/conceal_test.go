package rules

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/internal/seeding"
)

// TestPasswordsInOneLine: a document in one line, as JSON often is, with several values that may have a password and with
// faults before, between and behind them, shows none of these values. Keys are not given twice: of such a document only what
// looks like a password is known.
func TestPasswordsInOneLine(t *testing.T) {
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 41))
		secrets := []string{}
		secret := func() string {
			secrets = append(secrets, fmt.Sprintf("hush-%d-%d", len(secrets), r.Uint32()))
			return secrets[len(secrets)-1]
		}
		var limits []string
		for n := range 1 + r.IntN(4) {
			parts := []string{fmt.Sprintf("name: l%d", n)}
			for _, part := range []string{"redis: " + secret(), `"sto\u0072e": ` + secret(), "rat: 5/m", "rate: 5/m", "burst: 5/s", "match: {path: a}"} {
				if r.IntN(2) == 0 {
					parts = append(parts, part)
				}
			}
			r.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
			limits = append(limits, "{"+strings.Join(parts, ", ")+"}")
		}
		fields := []string{"limits: [" + strings.Join(limits, ", ") + "]"}
		for _, field := range []string{"sotre: " + secret(), `"sto\u0072e": ` + secret(), "blub: 1"} {
			if r.IntN(2) == 0 {
				fields = append(fields, field)
			}
		}
		r.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
		text := "{" + strings.Join(fields, ", ") + "}"
		shown := ""
		set, err := Parse("limits.yaml", []byte(text))
		if err != nil {
			shown = err.Error()
		} else {
			for _, w := range set.Warnings() {
				shown += document.Fault(w).Text()
			}
		}
		for _, s := range secrets {
			if strings.Contains(shown, s) {
				t.Fatalf("seed %d: %s of\n%s\nis shown:\n%s", seed, s, text, shown)
			}
		}
	}
}
