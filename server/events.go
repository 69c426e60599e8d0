package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/internal/crossings"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/webhook"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// events finds which keys cross a threshold of a limit, logs it, and sends it to the webhook.
type events struct {
	observer *crossings.Observer
	watcher  *crossings.Watcher
	sender   *webhook.Sender
}

// openEvents searches for crossings of the counters of an engine.
func openEvents(records store.Records, log *slog.Logger) *events {
	e := &events{sender: webhook.New(webhook.Options{Logger: log})}
	e.watcher = crossings.NewWatcher(crossings.Options{Records: records, Logger: log, Noted: func(event *crossings.Event) {
		logEvent(log, event)
		e.send(log, event)
	}})
	e.observer = crossings.NewObserver(e.watcher)
	return e
}

// readTarget returns where the files say that events go to.
func readTarget(set *rules.Set) (t webhook.Target, err error) {
	c := set.Events()
	if c.Webhook == "" {
		return t, nil
	}
	text, err := os.ReadFile(c.SecretFile)
	if err != nil {
		return t, fmt.Errorf("server: events: secret_file: %w: write one with echo whsec_$(head -c 32 /dev/urandom | base64) > %s", err, c.SecretFile)
	}
	if t.Secrets, err = webhook.ParseSecrets(bytes.TrimPrefix(text, []byte("\ufeff"))); err != nil {
		return t, fmt.Errorf("server: events: secret_file %s: %w", c.SecretFile, err)
	}
	t.URL = c.Webhook
	return t, nil
}

// watch finds the crossings of the limits of the sets.
func (e *events) watch(sets ...*rules.Set) {
	var list []crossings.Limit
	for _, set := range sets {
		for _, l := range set.Limits() {
			one := crossings.Limit{
				Name: cmp.Or(l.Base.Pool, l.Name), SoftPercent: l.SoftPercent, HardPercent: l.HardPercent, Shadow: l.Shadow,
				Show: func(key []byte) []limit.Attribute {
					attrs, _, _ := l.ShowKey(key)
					return attrs
				},
			}
			for _, word := range l.Events {
				one.Watch |= crossings.Of(word)
			}
			for _, v := range append([]*rules.Variant{&l.Base}, variants(l)...) {
				one.Specs = append(one.Specs, store.Spec{ID: v.ID, Policy: v.Policy})
			}
			list = append(list, one)
		}
	}
	e.observer.Watch(list)
}

// run notes what is found, and sends it, until ctx ends, which is after the last request.
func (e *events) run(ctx context.Context, by *engine.Engine) {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		e.sender.Run(sending)
	}()
	e.observer.Run(ctx, by)
	stop() // what was noted last is sent as well
	<-sent
}

// logEvent logs an event: what refuses requests is louder than what only may.
func logEvent(log *slog.Logger, e *crossings.Event) {
	level := slog.LevelInfo
	if e.Kind == crossings.WordHard || e.Kind == crossings.WordSaturated {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{
		slog.String("event", e.Kind), slog.String("limit", e.Limit), slog.Any("key", named(e.Key)),
		slog.Int64("used", e.Used), slog.Int64("nominal", e.Nominal), slog.Int64("quota", e.Quota), slog.Time("window_end", e.WindowEnd),
	}
	if e.Under != "" {
		attrs = append(attrs, slog.String("under", e.Under))
	}
	if e.Shadow {
		attrs = append(attrs, slog.Bool("shadow", true))
	}
	log.LogAttrs(context.Background(), level, "a key crossed a threshold of a limit", attrs...)
}

// message is what the webhook's receiver gets, in the form that Standard Webhooks recommends: a type, a time, and data.
type message struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      data      `json:"data"`
}

type data struct {
	Limit string            `json:"limit"`
	Key   map[string]string `json:"key"`
	// Seq counts the events of the key from 1.
	Seq       uint64    `json:"seq"`
	Under     string    `json:"under,omitempty"`
	Used      int64     `json:"used"`
	Nominal   int64     `json:"nominal"`
	Quota     int64     `json:"quota"`
	WindowEnd time.Time `json:"window_end"`
	Shadow    bool      `json:"shadow,omitempty"`
}

// named is a key as a map; an attribute is in a key only once.
func named(key []limit.Attribute) map[string]string {
	m := make(map[string]string, len(key))
	for _, a := range key {
		m[a.Name] = a.Value
	}
	return m
}

// send has an event sent to the webhook, if there is one.
func (e *events) send(log *slog.Logger, c *crossings.Event) {
	body, err := json.Marshal(message{"limit." + c.Kind, c.Time, data{
		c.Limit, named(c.Key), c.Seq, c.Under, c.Used, c.Nominal, c.Quota, c.WindowEnd, c.Shadow,
	}})
	if err != nil {
		log.Error("a crossing event cannot be sent", "limit", c.Limit, "err", err)
		return
	}
	e.sender.Send(c.Record, webhook.Message{ID: c.ID, Body: body})
}

// collectors are the metrics of events.
func (e *events) collectors() []prometheus.Collector { return []prometheus.Collector{eventMetrics{e}} }

type eventMetrics struct{ *events }

var (
	descEvents  = prometheus.NewDesc("stint_events_total", "Crossing events that this process noted.", []string{"event"}, nil)
	descDropped = prometheus.NewDesc("stint_events_dropped_total", "Crossing events that are not noted or not delivered.", []string{"reason"}, nil)
	descFailed  = prometheus.NewDesc("stint_events_store_failures_total", "Attempts to note crossing events that the store did not answer; they are made again.", nil, nil)
	descWaiting = prometheus.NewDesc("stint_events_waiting", "Crossing events that wait in this process for the webhook's receiver.", nil, nil)
	descSent    = prometheus.NewDesc("stint_webhook_attempts_total", "Attempts to send a crossing event.", []string{"result"}, nil)
	descFailing = prometheus.NewDesc("stint_webhook_failing", "1 while the webhook's receiver does not take crossing events.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (eventMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descEvents, descDropped, descFailed, descWaiting, descSent, descFailing} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (m eventMetrics) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n)
	}
	w, s := m.watcher.Stats(), m.sender.Stats()
	for word, n := range w.Events {
		count(descEvents, n, word)
	}
	for reason, n := range w.Dropped {
		count(descDropped, n, crossings.Dropped(reason).String())
	}
	count(descDropped, s.Full, "queue_full")
	count(descDropped, s.Old, "too_old")
	count(descDropped, s.Left, "process_ended")
	count(descFailed, w.Failures)
	gauge(descWaiting, float64(s.Waiting))
	count(descSent, s.Taken, "taken")
	count(descSent, s.Refused, "refused")
	count(descSent, s.Unreached, "unreached")
	failing := 0.0
	if s.Failing {
		failing = 1
	}
	gauge(descFailing, failing)
}
