// beanstalkd: put, reserve, delete, one call at a time on each of many connections.
package main

import (
	"errors"
	"time"

	"github.com/beanstalkd/go-beanstalk"
	"redrive/bench/peers/measure"
)

const callers = 32

func main() {
	run := measure.Start(1000)
	dial := func() *beanstalk.Conn {
		conn, err := beanstalk.Dial("tcp", run.Address)
		measure.Must(err)
		return conn
	}
	producers := make([]*beanstalk.Conn, callers)
	for i := range producers {
		producers[i] = dial()
	}
	for range callers {
		conn := dial()
		go func() {
			for {
				id, _, err := conn.Reserve(time.Second)
				if errors.Is(err, beanstalk.ErrTimeout) {
					continue
				}
				measure.Must(err)
				measure.Must(conn.Delete(id))
				run.Done()
			}
		}()
	}
	run.Begin(callers, func(number int) error {
		_, err := producers[number].Put(measure.Body, 1, 0, time.Minute)
		return err
	})
	run.Report()
}
