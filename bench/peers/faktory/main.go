// Faktory: PUSH, FETCH and ACK of its own protocol, one call at a time on each of many connections.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"

	"redrive/bench/peers/measure"
)

const callers = 32

type conn struct {
	net.Conn
	in *bufio.Reader
}

func dial(address, worker string) *conn {
	socket, err := net.Dial("tcp", address)
	measure.Must(err)
	c := &conn{socket, bufio.NewReader(socket)}
	_, err = c.answer() // HI
	measure.Must(err)
	hello := `{"v":2}`
	if worker != "" {
		hello = fmt.Sprintf(`{"v":2,"hostname":"bench","wid":%q,"pid":1,"labels":[]}`, worker)
	}
	_, err = c.call("HELLO " + hello)
	measure.Must(err)
	return c
}

func (c *conn) call(line string) (string, error) {
	if _, err := fmt.Fprintf(c, "%s\r\n", line); err != nil {
		return "", err
	}
	return c.answer()
}

// answer reads a reply in the encoding of Redis.
func (c *conn) answer() (string, error) {
	line, err := c.in.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return "", fmt.Errorf("an empty answer")
	}
	switch line[0] {
	case '+':
		return line[1:], nil
	case '$':
		size, err := strconv.Atoi(line[1:])
		if err != nil || size < 0 {
			return "", err
		}
		bytes := make([]byte, size+2)
		_, err = io.ReadFull(c.in, bytes)
		return string(bytes[:size]), err
	default:
		return "", fmt.Errorf("faktory said %q", line)
	}
}

func main() {
	run := measure.Start(1000)
	producers := make([]*conn, callers)
	for i := range producers {
		producers[i] = dial(run.Address, "")
	}
	for i := range callers {
		c := dial(run.Address, fmt.Sprintf("worker-%d", i))
		go func() {
			for {
				text, err := c.call("FETCH default")
				measure.Must(err)
				if text == "" {
					continue
				}
				var job struct {
					Jid  string   `json:"jid"`
					Args []string `json:"args"`
				}
				measure.Must(json.Unmarshal([]byte(text), &job))
				measure.Check([]byte(strings.Join(job.Args, "")))
				_, err = c.call(fmt.Sprintf(`ACK {"jid":%q}`, job.Jid))
				measure.Must(err)
				run.Done()
			}
		}()
	}
	var made atomic.Int64
	body := strings.Repeat("x", len(measure.Body))
	run.Begin(callers, func(number int) error {
		job := fmt.Sprintf(`{"jid":"bench-%012d","jobtype":"bench","args":[%q],"queue":"default"}`, made.Add(1), body)
		_, err := producers[number].call("PUSH " + job)
		return err
	})
	own := dial(run.Address, "")
	run.Report(func() (int, error) {
		// Every ACK was answered; what was enqueued in vain would still be in the queue.
		text, err := own.call("INFO")
		if err != nil {
			return 0, err
		}
		var info struct {
			Faktory struct {
				Enqueued int `json:"total_enqueued"`
			} `json:"faktory"`
		}
		err = json.Unmarshal([]byte(text), &info)
		return info.Faktory.Enqueued, err
	})
}
