package accesslog

import (
	"errors"
	"fmt"
	"strings"
)

// named are formats in the syntax of log_format. Whatever a line has behind them is ignored: many
// servers add fields.
var named = map[string]string{
	Common:   `$remote_addr $remote_logname $remote_user [$time_local] "$request" $status $body_bytes_sent`,
	Combined: `$remote_addr $remote_logname $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"`,
}

// ParseFormat returns the format of that name, or with that text in the syntax of nginx's log_format.
// first is the first line of the log, which is needed for "auto" and "csv".
func ParseFormat(text, first string) (*Format, error) {
	first = strings.TrimSuffix(strings.TrimPrefix(first, "\ufeff"), "\r")
	switch text {
	case "", Auto:
		return detect(first)
	case JSON:
		return &Format{name: JSON}, nil
	case CSV:
		return csvFormat(first)
	}
	if pattern := named[text]; pattern != "" {
		pieces, err := parsePattern(pattern)
		return &Format{name: text, pattern: pieces, open: true}, err
	}
	if !strings.Contains(text, "$") {
		return nil, fmt.Errorf("accesslog: unknown format %q, want %s, %s, %s, %s, %s, or the text of nginx's log_format with its $variables",
			text, Auto, Combined, Common, JSON, CSV)
	}
	pieces, err := parsePattern(text)
	if err != nil {
		return nil, err
	}
	return &Format{name: text, pattern: pieces}, nil
}

// parsePattern reads the text of a log_format.
func parsePattern(s string) ([]piece, error) {
	var pieces []piece
	text := ""
	for s != "" {
		i := strings.IndexByte(s, '$')
		if i < 0 {
			return append(pieces, piece{text: text + s}), nil
		}
		text, s = text+s[:i], s[i+1:]
		name := ""
		if strings.HasPrefix(s, "{") {
			end := strings.IndexByte(s, '}')
			if end < 0 {
				return nil, errors.New("accesslog: the format has a ${ without its }")
			}
			name, s = s[1:end], s[end+1:]
		} else {
			n := 0
			for n < len(s) && (s[n] == '_' || s[n] >= '0' && s[n] <= '9' || s[n]|0x20 >= 'a' && s[n]|0x20 <= 'z') {
				n++
			}
			name, s = s[:n], s[n:]
		}
		if name == "" {
			return nil, errors.New("accesslog: the format has a $ without the name of a variable")
		}
		if text == "" && len(pieces) > 0 {
			return nil, fmt.Errorf("accesslog: the format has nothing between $%s and $%s, so that nobody can say where one ends", pieces[len(pieces)-1].variable, name)
		}
		pieces, text = append(pieces, piece{text, name}), ""
	}
	return pieces, nil
}

// detect finds the format of a line.
func detect(first string) (*Format, error) {
	if strings.HasPrefix(strings.TrimLeft(first, " \t"), "{") {
		return &Format{name: JSON}, nil
	}
	for _, name := range []string{Combined, Common} {
		f, err := ParseFormat(name, "")
		if err != nil {
			return nil, err
		}
		p, err := f.Parser(Want{whole: true})
		if err != nil {
			return nil, err
		}
		if p.Parse(first, new(Line)) == nil {
			return f, nil
		}
	}
	if f, err := csvFormat(first); err == nil {
		return f, nil
	}
	return nil, errors.New("accesslog: the first line is neither combined, common, JSON nor CSV with a line of names: give the format of the log, such as nginx's log_format")
}
