package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test's executable be a worker.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "worker" {
		if err := work(os.Args[2], os.Args[3], os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestFleet: six processes admit no more than the limit together, use it, and are drawn.
func TestFleet(t *testing.T) {
	var out bytes.Buffer
	svg := filepath.Join(t.TempDir(), "fleet.svg")
	if err := run(t.Context(), []string{"-for", (2 * phase).String(), "-svg", svg}, &out); err != nil {
		t.Fatal(err)
	}
	figures := regexp.MustCompile(`: ([\d.]+) % of the limit used in \d+ s, at most (\d+) in a second`).FindStringSubmatch(out.String())
	if figures == nil {
		t.Fatal(out.String())
	}
	used, _ := strconv.ParseFloat(figures[1], 64)
	most, _ := strconv.Atoi(figures[2])
	// The bins of different processes are not cut at the same instant.
	if used < 30 || most > perSecond+burst+perSecond/10 {
		t.Error(out.String())
	}
	drawn, err := os.ReadFile(svg)
	if err != nil || strings.Count(string(drawn), `class="area"`) != workers {
		t.Errorf("%v, drawn: %.300s", err, drawn)
	}
}

// TestDemand: together the processes want half as much again as the limit, whoever is busy.
func TestDemand(t *testing.T) {
	for at := time.Duration(0); at < 3*workers*phase; at += phase / 2 {
		sum, busy := 0.0, 0
		for i := range workers {
			d := demand(i, at)
			if sum += d; d > perSecond/2 {
				busy++
			}
		}
		if sum < 1.49*perSecond || sum > 1.51*perSecond || busy != 1 {
			t.Errorf("at %v: %v per second, %d busy", at, sum, busy)
		}
	}
}
