package document

import (
	"fmt"
	"strings"
)

// Meant returns "did you mean ...?" with the word of [Suggest], or nothing.
func Meant(written string, words []string) string {
	if w, ok := Suggest(written, words); ok {
		return fmt.Sprintf("did you mean %s?", w)
	}
	return ""
}

// Suggest returns the word nearest to the one written, if any is near enough to
// have been meant.
func Suggest(written string, words []string) (string, bool) {
	best, least := "", 1+max(1, len(written)/3)
	if len(written) > 64 {
		return "", false
	}
	plain := func(s string) string {
		return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s))
	}
	for _, w := range words {
		d := min(distance(written, w), distance(plain(written), plain(w))+1)
		if d < least {
			best, least = w, d
		}
	}
	return best, best != ""
}

// distance is Levenshtein's, with the swap of two neighbours as one step.
func distance(a, b string) int {
	previous2, previous, current := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := range len(a) {
		current[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			current[j+1] = min(previous[j+1]+1, current[j]+1, previous[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				current[j+1] = min(current[j+1], previous2[j-1]+1)
			}
		}
		previous2, previous, current = previous, current, previous2
	}
	return previous[len(b)]
}
