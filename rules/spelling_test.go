package rules

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/seeding"
)

// typo returns word with one byte added, left out, replaced or swapped with its neighbour.
func typo(r *rand.Rand, word, alphabet string) string {
	i := r.IntN(len(word))
	c := string(alphabet[r.IntN(len(alphabet))])
	switch r.IntN(4) {
	case 0:
		return word[:i] + c + word[i:]
	case 1:
		return word[:i] + word[i+1:]
	case 2:
		return word[:i] + c + word[i+1:]
	}
	if i+1 == len(word) {
		i = max(0, i-1)
	}
	if i+1 >= len(word) {
		return word + c
	}
	return word[:i] + word[i+1:i+2] + word[i:i+1] + word[i+2:]
}

// warned says whether a file is refused, or warned of by stint check.
func warned(src string) (bool, string) {
	s, err := Parse("l.yaml", []byte(src))
	if err != nil {
		return true, err.Error()
	}
	text := ""
	for _, w := range append(s.Warnings(), s.Unprovided()...) {
		text += w.Error() + "\n"
	}
	return text != "", text
}

// Every typo of one edit in the name of an attribute, a method or a header field that is known is
// warned of, in a match and in a key; and of most the right word is named.
func TestTyposAreWarnedOf(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const letters = "abcdefghijklmnopqrstuvwxyz-_"
	named, all := 0, 0
	for seed := range seeding.Draw(t, 5_000) {
		r := rand.New(rand.NewPCG(seed, 5))
		pick := func(words []string) string { return words[r.IntN(len(words))] }
		var word, wrong, src string
		switch r.IntN(4) {
		case 0:
			word = pick(knownMethods)
			if wrong = typo(r, word, strings.ToUpper(letters)); contains(knownMethods, wrong) {
				continue
			}
			src = fmt.Sprintf("limits: [{name: a, rate: 1/s, match: {method: %q}}]", wrong)
		case 1:
			word = pick(knownHeaders)
			if wrong = typo(r, word, letters); contains(knownHeaders, wrong) {
				continue
			}
			src = fmt.Sprintf("limits: [{name: a, rate: 1/s, match: {%q: x}}]", "header:"+wrong)
		case 2:
			word = pick(knownKinds)
			if wrong = typo(r, word, letters); contains(knownKinds, wrong) {
				continue
			}
			src = fmt.Sprintf("limits: [{name: a, rate: 1/s, key: [%q]}]", wrong+":x-plan")
		default:
			word = pick(knownAttributes)
			if wrong = typo(r, word, letters); provided(wrong) || contains(knownAttributes, wrong) {
				continue
			}
			src = fmt.Sprintf("limits: [{name: a, rate: 1/s, key: [%q]}]", wrong)
			if r.IntN(2) == 0 {
				src = fmt.Sprintf("limits: [{name: a, rate: 1/s, match: {%q: x}}]", wrong)
			}
		}
		if wrong == "" {
			continue
		}
		ok, text := warned(src)
		if !ok {
			t.Errorf("%q for %q: no warning of %s", wrong, word, src)
		}
		if all++; strings.Contains(text, word) {
			named++
		}
	}
	if all < 2_500 || named < all*9/10 {
		t.Errorf("of %d typos %d warnings name the word that was meant", all, named)
	}
}

// What is known is not warned of, nor is what is far from it.
func TestNoTypoNoWarning(t *testing.T) {
	for _, m := range append(knownMethods, "*", "M-SEARCH") {
		if ok, text := warned(fmt.Sprintf("limits: [{name: a, rate: 1/s, match: {method: %q}}]", m)); ok {
			t.Errorf("%s: %s", m, text)
		}
	}
	for _, h := range append(knownHeaders, "x-plan", "x-acme-team", "dnt") {
		if ok, text := warned(fmt.Sprintf("limits: [{name: a, rate: 1/s, missing: skip, key: [\"header:%s\"]}]", h)); ok {
			t.Errorf("%s: %s", h, text)
		}
	}
	for path, want := range map[string]string{
		"/api/{id}": "write /api/*", "/api/{id}/x": "write /api/*/x", "/users/:id": "write /users/*", "/a/<id>": "write /a/*",
		"/v1/a:b": "", "/api/*": "", "/{": "",
	} {
		if ok, text := warned(fmt.Sprintf("limits: [{name: a, rate: 1/s, match: {path: %q}}]", path)); ok != (want != "") || !strings.Contains(text, want) {
			t.Errorf("%s: %q, want %q", path, text, want)
		}
	}
	for src, want := range map[string]string{
		"match: {methd: POST}":       "did you mean method?",
		"match: {header: x-user}":    "did you mean header:NAME?",
		"key: [\"heder:x-user\"]":    "did you mean header:x-user?",
		"key: [\"header:x-usr-id\"]": "did you mean header:x-user-id?",
	} {
		if _, text := warned("limits: [{name: a, rate: 1/s, " + src + "}]"); !strings.Contains(text, want) {
			t.Errorf("%s: %q, want %q", src, text, want)
		}
	}
}
