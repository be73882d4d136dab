// Package measure drives the same load against every peer: jobs of 256 bytes are enqueued for some seconds, by producers
// who may be a little ahead of the workers, and the clock stops when the server itself says that nothing is left.
package measure

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Body is what every job carries.
var Body = make([]byte, 256)

// Run is one measurement.
type Run struct {
	// Address of the server.
	Address  string
	seconds  float64
	began    time.Time
	deadline time.Time
	ended    time.Time
	made     atomic.Int64
	done     atomic.Int64
	// One for each job that is enqueued and not yet acknowledged.
	out      chan struct{}
	making   atomic.Int64
	finished chan struct{}
	once     sync.Once
}

// Start reads the flags; the clock runs from Begin on.
func Start(ahead int) *Run {
	address := flag.String("address", "", "where the server listens")
	seconds := flag.Float64("seconds", 5, "how long jobs are enqueued")
	flag.Parse()
	return &Run{
		Address: *address, seconds: *seconds,
		out: make(chan struct{}, ahead), finished: make(chan struct{}),
	}
}

// Begin starts the clock and the producers; each calls produce until the time is over.
func (run *Run) Begin(producers int, produce func(number int) error) {
	run.began = time.Now()
	run.deadline = run.began.Add(time.Duration(run.seconds * float64(time.Second)))
	run.making.Store(int64(producers))
	for number := range producers {
		go func() {
			for run.next() {
				Must(produce(number))
			}
			run.making.Add(-1)
			run.look()
		}()
	}
}

// next waits until the workers have caught up. False: the time is over.
func (run *Run) next() bool {
	select {
	case run.out <- struct{}{}:
	case <-run.finished:
		return false
	}
	if time.Now().After(run.deadline) {
		<-run.out
		return false
	}
	run.made.Add(1)
	return true
}

// Done says that a job was acknowledged.
func (run *Run) Done() {
	<-run.out
	run.done.Add(1)
	run.look()
}

func (run *Run) look() {
	if run.making.Load() == 0 && run.done.Load() >= run.made.Load() {
		run.once.Do(func() { close(run.finished) })
	}
}

// Finished is closed when every job is done.
func (run *Run) Finished() <-chan struct{} { return run.finished }

// Stop stops the clock, where asking what is left takes longer than the work did.
func (run *Run) Stop() { run.ended = time.Now() }

// Report waits for the last job, and until the server has none: what is acknowledged without an answer is on its way for
// a while. Then it prints what came out.
func (run *Run) Report(left func() (int, error)) {
	<-run.finished
	jobs, patience := run.done.Load(), time.Now().Add(10*time.Second)
	for {
		count, err := left()
		Must(err)
		if count == 0 {
			break
		}
		if time.Now().After(patience) {
			Must(fmt.Errorf("the server still has %d of %d acknowledged jobs", count, jobs))
		}
		time.Sleep(time.Millisecond)
	}
	if run.ended.IsZero() {
		run.Stop()
	}
	seconds := run.ended.Sub(run.began).Seconds()
	if made := run.made.Load(); made != jobs || jobs == 0 {
		Must(fmt.Errorf("%d jobs were enqueued, %d acknowledged", made, jobs))
	}
	text, err := json.Marshal(map[string]any{
		"jobs": jobs, "seconds": seconds, "jobs_per_second": float64(jobs) / seconds,
	})
	Must(err)
	fmt.Println(string(text))
	os.Exit(0)
}

// Check sees that a delivered job carries the body.
func Check(body []byte) {
	if len(body) != len(Body) {
		Must(fmt.Errorf("a body of %d bytes instead of %d was delivered", len(body), len(Body)))
	}
}

// Must ends the program with what went wrong.
func Must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
