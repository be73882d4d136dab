// RabbitMQ: a durable quorum queue, persistent messages with publisher confirms, deliveries
// acknowledged many at once.
package main

import (
	"context"
	"errors"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
	"redrive/bench/peers/measure"
)

const (
	producers = 4
	consumers = 4
	// Messages of one producer whose confirm is outstanding.
	window   = 200
	prefetch = 500
	// Deliveries that one ack covers at most.
	together = 50
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
	consuming := make([]*amqp.Channel, consumers)
	for i := range consuming {
		channel := channel()
		consuming[i] = channel
		measure.Must(channel.Qos(prefetch, 0, false))
		deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
		measure.Must(err)
		go func() {
			unacknowledged := 0
			for delivery := range deliveries {
				measure.Check(delivery.Body)
				unacknowledged++
				if unacknowledged < together && len(deliveries) > 0 {
					continue
				}
				measure.Must(delivery.Ack(true))
				for ; unacknowledged > 0; unacknowledged-- {
					run.Done()
				}
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
					measure.Must(errors.New("a message was not confirmed"))
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
	var closed sync.Once
	own := channel()
	run.Report(func() (int, error) {
		// Deliveries whose ack did not arrive go back into the queue, where they are counted.
		closed.Do(func() {
			for _, channel := range consuming {
				measure.Must(channel.Close())
			}
		})
		state, err := own.QueueDeclarePassive(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		return state.Messages, err
	})
}
