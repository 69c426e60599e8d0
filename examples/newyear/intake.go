package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/split"
)

// intakeArg is the argument with which this program starts itself as an intake.
const intakeArg = "intake"

// intakeJob is what an intake is started with: one line of JSON.
type intakeJob struct {
	Journal  string // file
	Provider string // URL
	Limit    int64  // per second
}

// intake accepts messages over HTTP, keeps them in a journal, acknowledges them, and sends
// them to the provider later, as fast as the limit lets it.
type intake struct {
	intakeJob
	journal *journal
	limiter *split.Limiter
}

// runIntake is the intake's main: it works until in ends, and prints its address first.
func runIntake(in io.Reader, out io.Writer) error {
	decoder := json.NewDecoder(in)
	var job intakeJob
	if err := decoder.Decode(&job); err != nil {
		return fmt.Errorf("job: %w", err)
	}
	j, err := openJournal(job.Journal)
	if err != nil {
		return err
	}
	limiter, err := split.New(split.Terms{Total: limit.Rate{Count: job.Limit, Period: time.Second}, Part: split.Instance(0, 1)}, split.Options{Name: "provider"})
	if err != nil {
		return err
	}
	i := &intake{job, j, limiter}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: i, ReadHeaderTimeout: 10 * time.Second}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { // ends with in, for which the process lives
		_, _ = io.Copy(io.Discard, in)
		stop()
	}()
	go func() { _ = server.Serve(l) }() // ends with Close
	defer func() { _ = server.Close() }()
	fmt.Fprintln(out, l.Addr())
	if err := i.process(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// ServeHTTP takes POST with an id as its body. 202 says that the message is on the disk.
func (i *intake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 100))
	id := string(body)
	if err != nil || id == "" || strings.ContainsAny(id, " \t\r\n\v\f") || len(strings.Fields(id)) != 1 {
		http.Error(w, "want an id of at most 100 bytes without spaces", http.StatusBadRequest)
		return
	}
	if err := i.journal.accept(id); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError) // not acknowledged
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// process sends one message after another to the provider until ctx ends. A message is done
// once the provider has answered: one that is killed in between is sent again, with its id.
func (i *intake) process(ctx context.Context) error {
	for {
		id, ok := i.journal.next()
		if !ok {
			select {
			case <-i.journal.more:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		for sent := false; !sent; {
			if err := i.limiter.Wait(ctx); err != nil {
				return err
			}
			sent = i.send(ctx, id)
		}
		if err := i.journal.done(id); err != nil {
			return err
		}
	}
}

func (i *intake) send(ctx context.Context, id string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, i.Provider, strings.NewReader(id))
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusNoContent
}
