// NATS JetStream: a work queue in files, publishes that are acknowledged, explicit acks.
package main

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"redrive/bench/peers/measure"
)

const (
	producers = 1
	consumers = 1
	// Publishes of one producer whose acknowledgement is outstanding.
	window = 4000
)

func main() {
	run := measure.Start(producers * window * 2)
	ctx := context.Background()
	open := func() jetstream.JetStream {
		conn, err := nats.Connect(run.Address)
		measure.Must(err)
		stream, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(window),
			jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) { measure.Must(err) }))
		measure.Must(err)
		return stream
	}
	stream, err := open().CreateStream(ctx, jetstream.StreamConfig{
		Name: "bench", Subjects: []string{"bench"},
		Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage,
	})
	measure.Must(err)
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "bench", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 10000,
	})
	measure.Must(err)
	for range consumers {
		own, err := open().Consumer(ctx, "bench", consumer.CachedInfo().Name)
		measure.Must(err)
		_, err = own.Consume(func(message jetstream.Msg) {
			measure.Check(message.Data())
			measure.Must(message.Ack())
			run.Done()
		})
		measure.Must(err)
	}
	streams := make([]jetstream.JetStream, producers)
	for i := range streams {
		streams[i] = open()
	}
	run.Begin(producers, func(number int) error {
		_, err := streams[number].PublishAsync("bench", measure.Body, jetstream.WithStallWait(10*time.Second))
		return err
	})
	run.Report(func() (int, error) {
		info, err := stream.Info(ctx)
		if err != nil {
			return 0, err
		}
		return int(info.State.Msgs), nil
	})
}
