package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/stint-io/stint/internal/telemetry"
	"github.com/stint-io/stint/server"
)

// lastWords bounds how long an end waits for the receiver of telemetry.
const lastWords = 2 * time.Second

// sending is telemetry with its goroutine; the zero value sends nothing.
type sending struct {
	telemetry *telemetry.Telemetry
	log       *slog.Logger
}

// openTelemetry reads the standard variables of OpenTelemetry, and has the server watched where they name a
// receiver.
func openTelemetry(ctx context.Context, o *server.Options) (sending, error) {
	t, err := telemetry.Open(ctx, os.Getenv, o.Version, o.Logger)
	if err != nil || t == nil {
		return sending{}, err
	}
	o.Instrument = t
	return sending{t, o.Logger}, nil
}

// start begins to send, and returns what ends it.
func (s sending) start() (end func()) {
	if s.telemetry == nil {
		return func() {}
	}
	ctx, stop := context.WithCancel(context.Background())
	last, cut := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.telemetry.Run(ctx, last) }()
	return func() {
		stop()
		timer := time.AfterFunc(lastWords, cut)
		defer cut()
		defer timer.Stop()
		if err := <-ended; err != nil {
			s.log.Warn("the last traces and metrics could not be sent", "error", err)
		}
	}
}
