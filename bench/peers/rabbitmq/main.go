// RabbitMQ: a durable quorum queue, persistent messages with publisher confirms, deliveries
// acknowledged many at once.
package main

import (
	"context"
	"errors"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"redrive/bench/peers/measure"
)

const (
	producers = 2
	consumers = 2
	// Messages of one producer whose confirm is outstanding.
	window   = 1000
	prefetch = 2000
	// Deliveries that one ack covers at most.
	together = 100
	queue    = "bench"
)

func main() {
	run := measure.Start(producers * window * 2)
	channel := func() *amqp.Channel {
		conn, err := amqp.Dial("amqp://guest:guest@" + run.Address + "/")
		measure.Must(err)
		channel, err := conn.Channel()
		measure.Must(err)
		closed := channel.NotifyClose(make(chan *amqp.Error, 1))
		go func() {
			if reason := <-closed; reason != nil {
				measure.Must(reason)
			}
		}()
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
		closed.Do(func() {
			for _, channel := range consuming {
				// Answered after the acks before it were taken.
				measure.Must(channel.Qos(prefetch, 0, false))
			}
			run.Stop()
			// Only jobs without a consumer are counted, so consumers give back what they have. A channel hands acks on to the
			// queue by and by, and would lose some if it were closed at once.
			time.Sleep(time.Second)
			for _, channel := range consuming {
				measure.Must(channel.Close())
			}
		})
		state, err := own.QueueDeclarePassive(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		return state.Messages, err
	})
}
