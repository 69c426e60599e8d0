package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestTopCommand: the limits of a running service, once, since the output is no terminal.
func TestTopCommand(t *testing.T) {
	config := file(t, "stint.yaml", `
limits:
  - {name: login, match: {path: /login}, key: [user], rate: 1/h}
  - {name: all, rate: 1000/s}
`)
	p := serveProcess(t, nil, "--config", config)
	env := []string{"STINT_ADMIN=" + strings.TrimPrefix(p.admin, "http://"), "STINT_ADDR=" + p.http}
	for _, user := range []string{"u1", "u1", "a\x1b[31m\u202e"} {
		call(t, env, "take", "user="+user, "path=/login")
	}
	for _, args := range [][]string{{"top"}, {"top", "--once", "--find", "log"}, {"top", "--once", "--sort", "name", "--limits", "1"}} {
		code, out, errOut := call(t, env, args...)
		if code != exitOK || !strings.HasPrefix(out, "LIMIT") || strings.ContainsAny(out, "\x1b\u202e") || errOut != "" {
			t.Errorf("%q: %d\n%s%s", args, code, out, errOut)
		}
		if wants := map[bool]string{true: "login", false: "all"}[len(args) < 5]; !strings.Contains(out, wants) {
			t.Errorf("%q: no %s in\n%s", args, wants, out)
		}
		if len(args) == 1 && (!strings.Contains(out, `user="u1"`) || !strings.Contains(out, "2 of 2 limits")) {
			t.Errorf("%s", out)
		}
	}
	for _, args := range [][]string{{"top", "--sort", "x"}, {"top", "--limits", "5000"}, {"top", "--every", "1ms"}, {"top", "x"}} {
		if code, out, _ := call(t, env, args...); code != exitUsage || out != "" {
			t.Errorf("%q: %d %s", args, code, out)
		}
	}
}

// On a terminal it draws again and again, says what fails meanwhile, and leaves the terminal as it was.
func TestTopRedraws(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var out strings.Builder
	n := 0
	err := redraw(ctx, &out, time.Millisecond, func() (string, error) {
		n++
		switch n {
		case 2:
			return "", errors.New("the service is gone\nhint: start it")
		case 4:
			cancel()
		}
		return "page\n", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	text := out.String()
	if !strings.HasPrefix(text, otherPage) || !strings.HasSuffix(text, firstPage) || strings.Count(text, cursorHome) < 3 || strings.Count(text, "! the service is gone") != 1 || strings.Contains(text, "hint") {
		t.Errorf("%q", text)
	}
	if err := redraw(t.Context(), &out, time.Hour, func() (string, error) { return "", errors.New("no") }); err == nil {
		t.Error("the first failure is not told")
	}
}
