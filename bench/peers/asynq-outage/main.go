// asynq in the outage of script/outage: its defaults, as many jobs at once as others have.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"redrive/bench/peers/measure"
)

func number(at int) float64 {
	value, err := strconv.ParseFloat(os.Args[at], 64)
	measure.Must(err)
	return value
}

func main() {
	downstream := os.Args[2]
	jobs, rate, slots, end := int64(number(3)), number(4), int(number(5)), number(6)
	redis := asynq.RedisClientOpt{Network: "unix", Addr: os.Args[1], PoolSize: slots + 8}
	client := asynq.NewClient(redis)
	server := asynq.NewServer(redis, asynq.Config{Concurrency: slots, LogLevel: asynq.FatalLevel})
	var done atomic.Int64
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		reply, err := http.Get(downstream)
		if err != nil {
			return err
		}
		io.Copy(io.Discard, reply.Body)
		reply.Body.Close()
		if reply.StatusCode != http.StatusOK {
			return fmt.Errorf("HTTP %d", reply.StatusCode)
		}
		done.Add(1)
		return nil
	})
	measure.Must(server.Start(handler))
	began := time.Now()
	for number := int64(0); number < jobs; number++ {
		due := time.Duration(float64(number) / rate * float64(time.Second))
		time.Sleep(due - time.Since(began))
		_, err := client.Enqueue(asynq.NewTask("charge", nil))
		measure.Must(err)
	}
	for time.Since(began).Seconds() < end && done.Load() < jobs {
		time.Sleep(200 * time.Millisecond)
	}
	info, err := asynq.NewInspector(redis).GetQueueInfo("default")
	measure.Must(err)
	fmt.Println(done.Load(), info.Archived)
}
