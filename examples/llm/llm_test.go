package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/builttest"
)

// stintBinary is built once, by TestMain.
var stintBinary string

// TestMain lets this test binary be the model and the gateways, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == modelArg || os.Args[1] == gatewayArg) {
		if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "llm:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "stint-llm-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if stintBinary, err = builttest.Stint(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// With a gateway killed in the middle no budget is overspent by what is reserved, and stint counts at least what was
// spent. The same load overspends where the gateways ask first and charge at the end.
func TestBudgetsWithACrash(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	t.Parallel()
	s := usual()
	s.For, s.KillAt, s.TTL, s.Rate, s.Scale, s.Stint = 4*time.Second, time.Second, time.Second, 250, 0.25, stintBinary
	var r *result
	for month := time.Month(0); month != time.Now().UTC().Month(); { // again, should a month begin meanwhile
		month = time.Now().UTC().Month()
		var out strings.Builder
		var err error
		if r, err = s.measure(t.Context(), t.TempDir(), &out); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		r.print(&out)
		t.Log(out.String())
	}
	exhausted, overspent := 0, 0
	for _, c := range r.courses {
		var cut, refused, suggested int64
		for tenant, o := range c.outcomes {
			cut, refused, suggested = cut+o.Cut.Load(), refused+o.Refused.Load(), suggested+o.Suggested.Load()
			if o.Failed.Load()+o.Bad.Load() > 0 || o.Done.Load() == 0 {
				t.Errorf("%s, %s: %d answered, %d failed, %d without their header fields", c.way, tenant, o.Done.Load(), o.Failed.Load(), o.Bad.Load())
			}
			if counted := c.stands[tenant][1].Used + c.stands[tenant][2].Used; c.way == byReserve && o.Sent.Load() > counted {
				t.Errorf("%d tokens have reached %s, and %d count", o.Sent.Load(), tenant, counted)
			}
			for i, b := range budgets {
				f, spent := c.stands[tenant][i], b.spent(c.last(), tenant)
				if c.way == byProbe {
					if c.over(tenant, i) > 0 {
						overspent++
					}
					continue
				}
				if spent > f.Used || f.Used > f.Quota {
					t.Errorf("%s, %s: %d spent, %d counted, the budget is %d", tenant, b, spent, f.Used, f.Quota)
				}
				if f.Used > f.Quota/3 && b.unit == unitMoney {
					exhausted++
				}
			}
		}
		if cut == 0 || refused == 0 {
			t.Errorf("%s: the crash cut %d streams, and %d requests were refused, want some of each", c.way, cut, refused)
		}
		if c.way == byReserve && suggested == 0 {
			t.Error("no refusal named another model")
		}
	}
	if exhausted == 0 || overspent == 0 {
		t.Errorf("%d budgets of money were used by more than a third by reservations, %d budgets were overspent by charging at the end, want some", exhausted, overspent)
	}
	if err := isXML(r.svg()); err != nil {
		t.Errorf("the chart is not XML: %v", err)
	}
}

func isXML(text []byte) error {
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestBadSettings(t *testing.T) {
	for args, want := range map[string]string{
		"-for 1ms":            "-for is 1ms",
		"-kill 59s":           "-kill is 59s",
		"-ttl 1ms":            "-ttl is 1ms",
		"-streams 0":          "-streams is 0",
		"-rate 0":             "-rate is 0",
		"-scale NaN":          "-scale is NaN",
		"-unknown":            "not defined",
		"more":                `"more"`,
		"model -rate -1":      "-rate is -1",
		"gateway -way hope":   `-way is "hope"`,
		"gateway -ttl 1ms":    "-ttl is 1ms",
		"gateway -listen a:b": "listen",
		"-stint /nowhere/stint -for 5s -kill 1s -ttl 1s -svg ": "/nowhere/stint",
	} {
		if err := run(t.Context(), strings.Split(args, " "), strings.NewReader(""), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
