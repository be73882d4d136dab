// asynq on Redis: each task enqueued by its own call, worked off by one server with many goroutines.
package main

import (
	"context"

	"github.com/hibiken/asynq"
	"redrive/bench/peers/measure"
)

const (
	producers = 32
	workers   = 64
)

func main() {
	run := measure.Start(2000)
	redis := asynq.RedisClientOpt{Addr: run.Address, PoolSize: producers + workers}
	client := asynq.NewClient(redis)
	server := asynq.NewServer(redis, asynq.Config{Concurrency: workers, LogLevel: asynq.ErrorLevel})
	// asynq acknowledges after the handler has returned, out of our sight.
	handler := asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		measure.Check(task.Payload())
		run.Done()
		return nil
	})
	measure.Must(server.Start(handler))
	task := asynq.NewTask("bench", measure.Body)
	run.Begin(producers, func(int) error {
		_, err := client.Enqueue(task)
		return err
	})
	inspector := asynq.NewInspector(redis)
	run.Report(func() (int, error) {
		info, err := inspector.GetQueueInfo("default")
		if err != nil {
			return 0, err
		}
		return info.Size, nil
	})
}
