// RabbitMQ: a durable quorum queue, persistent messages with publisher confirms, each delivery acknowledged.
package main

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"
	"redrive/bench/peers/measure"
)

const (
	producers = 4
	consumers = 4
	// Messages of one producer whose confirm is outstanding.
	window   = 200
	prefetch = 500
	queue    = "bench"
)

func main() {
	run := measure.Start(producers * window * 4)
	channel := func() *amqp.Channel {
		conn, err := amqp.Dial("amqp://guest:guest@" + run.Address + "/")
		measure.Must(err)
		channel, err := conn.Channel()
		measure.Must(err)
		return channel
	}
	_, err := channel().QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	measure.Must(err)
	for range consumers {
		channel := channel()
		measure.Must(channel.Qos(prefetch, 0, false))
		deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
		measure.Must(err)
		go func() {
			for delivery := range deliveries {
				measure.Must(delivery.Ack(false))
				run.Done()
			}
		}()
	}
	channels := make([]*amqp.Channel, producers)
	unconfirmed := make([]chan *amqp.DeferredConfirmation, producers)
	for i := range channels {
		channels[i] = channel()
		measure.Must(channels[i].Confirm(false))
		unconfirmed[i] = make(chan *amqp.DeferredConfirmation, window)
		go func() {
			for confirmation := range unconfirmed[i] {
				if !confirmation.Wait() {
					panic("a message was not confirmed")
				}
			}
		}()
	}
	message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: measure.Body}
	run.Begin(producers, func(number int) error {
		confirmation, err := channels[number].PublishWithDeferredConfirmWithContext(
			context.Background(), "", queue, false, false, message)
		if err == nil {
			unconfirmed[number] <- confirmation
		}
		return err
	})
	run.Report()
}
