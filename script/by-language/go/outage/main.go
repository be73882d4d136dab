// A worker as thin as it can be: the generated stubs, net/http, and what any error has.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"
	"redrive.dev/go/redrivev1"
)

func handle(url string) error {
	response, err := (&http.Client{Timeout: 5 * time.Second}).Get(url)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	server, queue, api := os.Args[1], os.Args[2], os.Args[3]
	connection := must(grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials())))
	client, ctx := redrivev1.NewQueueServiceClient(connection), context.Background()
	for {
		wait := durationpb.New(20 * time.Second)
		claimed := must(client.Claim(ctx, &redrivev1.ClaimRequest{Queues: []string{queue}, MaxJobs: 1, Wait: wait}))
		for _, job := range claimed.Jobs {
			err := handle(api)
			if err == nil {
				must(client.Ack(ctx, &redrivev1.AckRequest{Lease: job.Lease}))
				continue
			}
			failure := &redrivev1.Failure{Type: fmt.Sprintf("%T", err), Message: err.Error()}
			answer := must(client.Nack(ctx, &redrivev1.NackRequest{Lease: job.Lease, Error: failure}))
			line := map[string]string{"type": failure.Type, "code": "", "message": failure.Message, "explanation": answer.Explanation}
			_ = json.NewEncoder(os.Stdout).Encode(line)
		}
	}
}
