package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// topic is the stream of accepted requests, its subject, and the group of consumers that share it.
const topic = "onedari"

// ackWait is after how long a message of a consumer that is gone is delivered to another. A consumer that lives says so more often.
const ackWait = 5 * time.Second

// broker is a NATS server with JetStream, which keeps messages in files of dir.
type broker struct {
	server *natsserver.Server
	conn   *nats.Conn
	stream jetstream.JetStream
}

func newBroker(ctx context.Context, dir string) (*broker, error) {
	server, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true,
	})
	if err != nil {
		return nil, err
	}
	server.Start()
	b := &broker{server: server}
	if !server.ReadyForConnections(10 * time.Second) {
		b.close()
		return nil, fmt.Errorf("the broker is not ready")
	}
	if b.conn, err = nats.Connect("", nats.InProcessServer(server)); err == nil {
		b.stream, err = jetstream.New(b.conn)
	}
	if err == nil {
		_, err = b.stream.CreateStream(ctx, jetstream.StreamConfig{
			Name: topic, Subjects: []string{topic}, Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage,
		})
	}
	if err == nil {
		_, err = b.stream.CreateConsumer(ctx, topic, jetstream.ConsumerConfig{
			Durable: topic, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: -1,
		})
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *broker) close() {
	if b.conn != nil {
		b.conn.Close()
	}
	b.server.Shutdown()
	b.server.WaitForShutdown()
}

// ServeHTTP accepts a request, whose body is its id: 202 says that the broker has it. A sender that gets
// no answer sends the request again, and the broker keeps it once.
func (b *broker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 100))
	if err != nil || len(id) == 0 {
		http.Error(w, "want an id of at most 100 bytes", http.StatusBadRequest)
		return
	}
	if _, err := b.stream.Publish(r.Context(), topic, id, jetstream.WithMsgID(string(id))); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}
