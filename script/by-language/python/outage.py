"""A worker as thin as it can be: the generated stubs, urllib, and what any error has."""

import errno
import json
import sys
import urllib.request

import grpc
from google.protobuf.duration_pb2 import Duration
from redrive.v1 import queue_pb2, queue_pb2_grpc

server, queue, api = sys.argv[1:]
client = queue_pb2_grpc.QueueServiceStub(grpc.insecure_channel(server))
while True:
    wanted = queue_pb2.ClaimRequest(queues=[queue], max_jobs=1, wait=Duration(seconds=20))
    for job in client.Claim(wanted).jobs:
        try:
            urllib.request.urlopen(api, timeout=5).close()
        except Exception as error:
            code = getattr(error, "code", None)
            if code is None and isinstance(error, OSError):
                code = errno.errorcode.get(error.errno)
            failure = {"type": type(error).__name__, "message": str(error), "code": str(code or "")}
            answer = client.Nack(queue_pb2.NackRequest(lease=job.lease, error=queue_pb2.Failure(**failure)))
            print(json.dumps({**failure, "explanation": answer.explanation}), flush=True)
        else:
            client.Ack(queue_pb2.AckRequest(lease=job.lease))
