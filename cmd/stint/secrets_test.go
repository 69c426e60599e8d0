package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// drawSecret draws a password, with the characters that URLs and YAML give a meaning.
func drawSecret(r *rand.Rand) string {
	const plain = "abcdefghijkmnpqrstuvwxyz23456789"
	word := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = plain[r.IntN(len(plain))]
		}
		return string(b)
	}
	// The part that is looked for has a digit: it is no word of a message.
	text := word(4) + "7" + word(4)
	for r.IntN(3) == 0 {
		text += string("/?&%:@+=~!$"[r.IntN(11)]) + word(4) + "7" + word(4)
	}
	return text
}

// secretParts are the parts of a secret by which it is found in a text.
func secretParts(secret string) []string {
	return strings.FieldsFunc(secret, func(r rune) bool { return strings.ContainsRune("/?&%:@+=~!$", r) })
}

// drawSecretURL draws a URL of a store or a cluster with a password in it, and breaks it or not.
func drawSecretURL(r *rand.Rand, secret string) string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	scheme := pick("redis://", "redis://", "rediss://", "valkey://", "redis+cluster://", "redis+sentinel://", "etcd://", "etcds://", "")
	scheme = pick(scheme, scheme, strings.Replace(scheme, "://", ":", 1), strings.Replace(scheme, "://", ":/", 1), strings.Replace(scheme, "red", "rde", 1), "postgres://")
	host := pick("127.0.0.1:1", "localhost:1", "127.0.0.1:x", "h,h2", "[::1]:1", "127.0.0.1:1:2", "")
	user := pick("", "u", "app")
	switch r.IntN(6) {
	case 0:
		return scheme + host + pick("?", "/?", "/m?") + pick("sentinel_password=", "password=", "pasword=", "passwd=", "db=1&pw=", "x&password=") + secret
	case 1:
		return scheme + user + ":" + secret + pick("", "#", ",") + host
	default:
		return scheme + user + ":" + secret + "@" + host + pick("", "", "/0", "?timeout=1ms", "?timeout=x", "/x/y", "#f", "?nonsense=1", " ")
	}
}

// TestNoSecretIsShown: whatever becomes of a URL with a password, in a file, in a flag or in the environment, however
// it is broken, no output of a command has a part of the password.
func TestNoSecretIsShown(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 9))
	for n := range 120 {
		secret := drawSecret(r)
		url := drawSecretURL(r, secret)
		const limits = "limits: [{name: a, rate: 5/m}]\n"
		quoted := "'" + strings.ReplaceAll(url, "'", "''") + "'"
		path := file(t, fmt.Sprint("f", n, ".yaml"), []string{
			"store: " + quoted + "\n" + limits, "store: " + url + "\n" + limits, "store: \"" + url + "\"\n" + limits, "store:\n  " + quoted + "\n" + limits,
			"{store: " + quoted + ", limits: [{name: a, rat: 5/m}]}\n", "stor: " + url + "\n" + limits, "store: [" + url + "]\n" + limits,
			"store: {url: " + quoted + "}\n" + limits, "limits: [{name: a, rate: 5/m}] # " + url + "\nstore: x\n", "store: " + url + ": x\n" + limits,
			"limits: [{name: a, rate: 5/m, store: " + quoted + "}]\n",
		}[r.IntN(11)])
		good := file(t, fmt.Sprint("g", n, ".yaml"), limits)
		ports := []string{"--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "nowhere:x", "--state-dir", "none"} // serve ends
		serve := append([]string{"serve"}, ports...)
		calls := [][]string{
			{"check", path},
			append(serve, "--config", path),
			append(serve, "--config", good, "--store", url),
			append(serve, "--config", good, "--cluster", url),
			append(serve, "--config", url),
			append(serve, "--config", good, url),
			{"doctor", "--store", url},
			{"doctor", "--config", path},
			{"doctor", "--cluster", url},
			{"config", "status", "--cluster", url},
			{"config", "push", "--cluster", url, path},
			{"check", url},
		}
		args := calls[r.IntN(len(calls))]
		var env []string
		if r.IntN(4) == 0 {
			env = []string{"STINT_STORE=" + url, "STINT_CLUSTER=" + url, "STINT_STOER=" + url}
			args = [][]string{append(serve, "--config", good), {"doctor"}, {"check", good}}[r.IntN(3)]
		}
		code, out, errOut := call(t, env, args...)
		for _, part := range secretParts(secret) {
			if strings.Contains(out+errOut, part) {
				t.Errorf("seed %d, %d: stint %v %v ends with %d and shows %q of %q:\n%s%s", seed, n, env, args, code, part, secret, out, errOut)
				break
			}
		}
	}
}
