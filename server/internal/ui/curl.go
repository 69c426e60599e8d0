package ui

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// asked is the request that a curl command would send.
type asked struct {
	method string
	url    *url.URL
	header http.Header
}

// Options of curl that take a value which does not matter here, and those that take none.
const (
	curlValued = " -o --output -m --max-time --connect-timeout --cacert --cert --key -E -x --proxy --resolve --connect-to --retry -w --write-out -c --cookie-jar --limit-rate --interface -D --dump-header -T --upload-file -r --range "
	curlData   = " -d --data --data-raw --data-binary --data-urlencode --data-ascii --json -F --form "
)

// parseCurl reads a curl command as browsers copy it, and as people write it. It runs nothing and reads no file.
func parseCurl(text string) (a asked, err error) {
	words, err := words(text)
	if err != nil {
		return a, err
	}
	if len(words) > 0 && words[0] == "curl" {
		words = words[1:]
	}
	a.header = http.Header{}
	place, hasData, get := "", false, false
	for i := 0; i < len(words); i++ {
		w, value, joined := words[i], "", false
		switch {
		case !strings.HasPrefix(w, "-") || w == "-":
			if place != "" {
				return a, fmt.Errorf("there are two URLs, %.100q and %.100q", place, w)
			}
			place = w
			continue
		case strings.HasPrefix(w, "--"):
			w, value, joined = strings.Cut(w, "=")
		case len(w) > 2 && strings.ContainsRune("XHdAebuFom", rune(w[1])):
			w, value, joined = w[:2], w[2:], true
		}
		name := " " + w + " "
		needs := strings.Contains(curlValued+curlData, name) || strings.Contains(" -X --request -H --header -A --user-agent -e --referer -b --cookie -u --user --url ", name)
		if needs && !joined {
			if i++; i == len(words) {
				return a, fmt.Errorf("%s has no value", w)
			}
			value = words[i]
		}
		switch {
		case w == "-X" || w == "--request":
			a.method = value
		case w == "-H" || w == "--header":
			if n, v, ok := strings.Cut(value, ":"); ok && strings.TrimSpace(n) != "" {
				a.header.Add(strings.TrimSpace(n), strings.TrimSpace(v))
			}
		case w == "-A" || w == "--user-agent":
			a.header.Set("User-Agent", value)
		case w == "-e" || w == "--referer":
			a.header.Set("Referer", value)
		case w == "-b" || w == "--cookie":
			a.header.Add("Cookie", value)
		case w == "--url":
			place = value
		case w == "-I" || w == "--head":
			a.method = http.MethodHead
		case w == "-G" || w == "--get":
			get = true
		case strings.Contains(curlData, name):
			hasData = true
		}
	}
	return a, a.complete(place, hasData, get)
}

// complete fills in what curl does by default.
func (a *asked) complete(place string, hasData, get bool) (err error) {
	if place == "" {
		return errors.New("there is no URL: paste a command such as curl https://api.example/orders -H 'X-Api-Key: k1'")
	}
	if !strings.Contains(place, "://") {
		place = "http://" + place
	}
	if a.url, err = url.Parse(place); err != nil || a.url.Host == "" {
		return fmt.Errorf("%.100q is no URL", place)
	}
	switch {
	case a.method != "":
	case hasData && !get:
		a.method = http.MethodPost
	default:
		a.method = http.MethodGet
	}
	return nil
}

// words cuts a command as a shell does: quotes, backslashes, and lines that go on. A $'...' is taken too, as browsers
// write it.
func words(text string) (list []string, err error) {
	var word strings.Builder
	inside, quote := false, rune(0)
	runes := []rune(text)
	for i := 0; i < len(runes); i++ {
		c := runes[i]
		next := rune(0)
		if i+1 < len(runes) {
			next = runes[i+1]
		}
		switch {
		case quote == '\'' && c == '\'', quote == '$' && c == '\'', quote == '"' && c == '"':
			quote = 0
		case quote == '$' && c == '\\' && next != 0, quote == '"' && c == '\\' && strings.ContainsRune("\"\\$`\n", next), quote == 0 && c == '\\' && next != 0:
			if i++; next == '\r' && i+1 < len(runes) && runes[i+1] == '\n' {
				i++
			} else if next != '\n' {
				word.WriteRune(next)
				inside = true
			}
		case quote != 0:
			word.WriteRune(c)
		case c == '$' && next == '\'':
			quote, inside = '$', true
			i++
		case c == '\'' || c == '"':
			quote, inside = c, true
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			if inside {
				list = append(list, word.String())
				word.Reset()
			}
			inside = false
		default:
			word.WriteRune(c)
			inside = true
		}
	}
	if quote != 0 {
		return nil, errors.New("a quote is not closed")
	}
	if inside {
		list = append(list, word.String())
	}
	return list, nil
}
