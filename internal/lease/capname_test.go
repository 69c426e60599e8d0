package lease

import "testing"

// TestCapsKnowIdentities: an instance whose identity was asked for is under the cap of its identity, whatever it
// calls itself; without one, under that of its own name.
func TestCapsKnowIdentities(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	terms := &Terms{Sites: []SiteCap{{Name: "eu-1", Rate: 1}, {Name: "europe", Rate: 2}, {Name: EverySite, Rate: 3}}}
	for instance, want := range map[string]string{
		"eu-1": "eu-1", "us-1": "us-1", "europe/eu-1": "europe", "europe/anything": "europe", "europe/a/b": "europe",
		"america/eu-1": "eu-1", "america/us-1": "us-1", "america/europe": "europe",
	} {
		if got := terms.CapName(instance); got != want {
			t.Errorf("%s is under the cap of %q, want %q", instance, got, want)
		}
	}
}
