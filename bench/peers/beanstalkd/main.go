// beanstalkd: put, reserve and delete; each connection carries the calls of several goroutines, one behind the other.
package main

import (
	"errors"
	"strconv"
	"time"

	"github.com/beanstalkd/go-beanstalk"
	"redrive/bench/peers/measure"
)

const (
	connections = 4
	producers   = 64
	workers     = 32
)

func main() {
	run := measure.Start(1000)
	dial := func() *beanstalk.Conn {
		conn, err := beanstalk.Dial("tcp", run.Address)
		measure.Must(err)
		return conn
	}
	for range workers {
		conn := dial()
		go func() {
			for {
				id, body, err := conn.Reserve(time.Second)
				if errors.Is(err, beanstalk.ErrTimeout) {
					continue
				}
				measure.Must(err)
				measure.Check(body)
				measure.Must(conn.Delete(id))
				run.Done()
			}
		}()
	}
	conns := make([]*beanstalk.Conn, connections)
	for i := range conns {
		conns[i] = dial()
	}
	run.Begin(producers, func(number int) error {
		_, err := conns[number%connections].Put(measure.Body, 1, 0, time.Minute)
		return err
	})
	own := dial()
	run.Report(func() (int, error) {
		stats, err := own.Stats()
		left := 0
		for _, state := range []string{"ready", "reserved", "delayed", "buried"} {
			count, _ := strconv.Atoi(stats["current-jobs-"+state])
			left += count
		}
		return left, err
	})
}
