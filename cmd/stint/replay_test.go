package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The commands replay and test: their outputs, their exit codes, and what they say of wrong use.
func TestReplayAndTestCommands(t *testing.T) {
	limits := file(t, "new.yaml", "limits:\n  - {name: c, key: [ip], rate: 1/s, burst: 2}\n")
	old := file(t, "old.yaml", "limits:\n  - {name: c, key: [ip], rate: 1/s, burst: 3}\n")
	bad := file(t, "bad.yaml", "limits:\n  - {name: c, kye: [ip], rate: 1/s}\n")
	log := file(t, "access.csv", "time,client,who\n1791640500000,192.0.2.7,a\n1791640500001,192.0.2.7,b\n1791640500002,192.0.2.7,c\n1791640500003,192.0.2.7,d\n")
	tests := file(t, "c_test.yaml", "config: "+limits+"\ntests:\n  - name: two\n    steps:\n      - {request: {ip: a}, repeat: 3, expect: {admitted: 2}}\n")
	wrong := file(t, "w_test.yaml", "config: "+limits+"\ntests:\n  - name: two\n    steps:\n      - {request: {ip: a}, repeat: 3, expect: {admitted: 3}}\n")
	slip := file(t, "s_test.yaml", "config: "+limits+"\ntest: []\n")
	svg := filepath.Join(t.TempDir(), "out.svg")
	for _, c := range []struct {
		args []string
		code int
		text []string
	}{
		{[]string{"replay", "--config", limits, "--svg", svg, log}, exitOK, []string{"2 admitted, 2 refused (50 %)", "ip=192.0.2.7  2"}},
		{[]string{"replay", "--config", limits, "--against", old, log}, exitOK, []string{"newly refused: 1, newly admitted: 0", "1 refused"}},
		{[]string{"replay", "--config", limits, "--field", "ip=who", log}, exitOK, []string{"4 admitted, 0 refused"}},
		{[]string{"replay", "--config", limits, "--json", log}, exitOK, []string{`"refused": 2`, `"key": "ip=192.0.2.7"`, `"keys_error": 0`}},
		{[]string{"replay", "--config", limits, "--progress", "always", log}, exitOK, []string{"2 admitted"}},
		{[]string{"replay", "--config", limits, "--bursts", log}, exitOK, []string{"c, the burst with which so many of 1 keys are refused nothing:\n  rate  half", "\n  1/2s     4        4          4    4\n"}},
		{[]string{"replay", log}, exitUsage, []string{"hint: --config"}},
		{[]string{"replay", "--config", bad, log}, exitNo, []string{"did you mean key?", "1 fault"}},
		{[]string{"replay", "--config", limits, limits}, exitUsage, []string{"no line could be read", "hint: say with --format"}},
		{[]string{"replay", "--config", limits, "--format", "nginx", log}, exitUsage, []string{`unknown format "nginx"`}},
		{[]string{"replay", "--config", limits, "--field", "user=a", "--field", "ip=a", log}, exitUsage, []string{"the attributes ip and user"}},
		{[]string{"replay", "--config", limits, "--field", "user", log}, exitUsage, []string{"ATTRIBUTE=FIELD"}},
		{[]string{"replay", "--config", limits, "--reorder", "-1s", log}, exitUsage, []string{"--reorder"}},
		{[]string{"replay", "--config", limits, "--memory", "1KiB", log}, exitUsage, []string{"64KiB"}},
		{[]string{"replay", "--config", limits, filepath.Dir(log)}, exitUsage, []string{"is a folder"}},
		{[]string{"replay", "--config", limits, log + "x"}, exitUsage, []string{"no such file"}},
		{[]string{"replay", "--config", limits, "-", "-"}, exitUsage, []string{"once only"}},
		{[]string{"replay", "--config", limits, "--svg", filepath.Join(svg, "no", "x"), log}, exitUsage, []string{"--svg"}},
		{[]string{"test", tests}, exitOK, []string{"ok    " + tests + "  1 test\n"}},
		{[]string{"test", "-v", tests}, exitOK, []string{"--- PASS: two (" + tests + ":3)"}},
		{[]string{"test", wrong, tests}, exitNo, []string{"--- FAIL: two", wrong + ":5: 3 requests, at 0s: admitted\n        got  2\n        want 3", "ok    "}},
		{[]string{"test", "--json", wrong}, exitNo, []string{`"ok": false`, `"what": "admitted"`}},
		{[]string{"test", slip}, exitNo, []string{"did you mean tests?", "FAIL  "}},
		{[]string{"test", "--json", slip}, exitNo, []string{`"hint": "did you mean tests?"`}},
		{[]string{"test", slip + "x"}, exitUsage, []string{"no such file"}},
	} {
		code, out, errOut := call(t, nil, c.args...)
		if code != c.code {
			t.Errorf("%v: exit code %d, want %d\n%s%s", c.args, code, c.code, out, errOut)
		}
		for _, want := range c.text {
			if !strings.Contains(out+errOut, want) {
				t.Errorf("%v: no %q in\n%s%s", c.args, want, out, errOut)
			}
		}
	}
	text, err := os.ReadFile(svg)
	if err != nil || !strings.HasPrefix(string(text), "<svg ") || !strings.Contains(string(text), "2 of 4 refused") {
		t.Errorf("the chart is %.200s, %v", text, err)
	}
}
