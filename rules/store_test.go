package rules

import (
	"strings"
	"testing"
)

// Every form of URL that a store is named by is taken as it is, with no warning.
func TestStoresAreTaken(t *testing.T) {
	for _, name := range []string{
		"memory", "redis://localhost", "rediss://u:p@h:6379/3?timeout=20ms", "valkey://h", "valkeys://h",
		"redis+cluster://a,b:7000", "rediss+cluster://a", "redis+sentinel://a,b/mymaster", "rediss+sentinel://a/m",
		"valkey+cluster://a", "valkeys+cluster://a", "valkey+sentinel://a/m", "valkeys+sentinel://a/m",
	} {
		set, err := Parse("test", []byte("store: '"+name+"'\nlimits: [{name: a, rate: 5/m}]"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if set.Store() != name || len(set.Warnings()) > 0 {
			t.Errorf("%s: %s, %v", name, set.Store(), set.Warnings())
		}
	}
}

// A password in a store's URL is in no error, whatever is wrong with the file.
func TestFaultsHideThePassword(t *testing.T) {
	const limits = "limits: [{name: a, rate: 5/m}]"
	for _, c := range []struct{ src, want string }{
		{"store: postgres://user:s3cret@host\n" + limits, `unknown store "postgres"`},
		{"store: redis:user:s3cret@host\n" + limits, `unknown store "redis"`},
		{"store: redsi://:s3c@s3cret@host\n" + limits, "did you mean redis?"},
		{"{store: redis://:s3cret@host, rate: 5/m, " + limits[:len(limits)-1] + "]}", `"rate"`},
		{"stor: redis://:s3cret@host\n" + limits, "did you mean store?"},
		{"store: [redis+sentinel://h/m?sentinel_password=s3cret]\n" + limits, "list"},
		{"store: redis://:s3cret@host: x\n" + limits, ":1:"},
	} {
		_, err := Parse("test", []byte(c.src))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.src, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "s3c") {
			t.Errorf("the password is in %v", err)
		}
	}
}
