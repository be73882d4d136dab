"""Drives script/outage-by-language: a server without configuration, an API that is down for a minute, a worker of each language.

    outage.py PLACE SERVER PROTOS
"""

import http.server
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

import grpc
from redrive.v1 import admin_pb2, admin_pb2_grpc, queue_pb2, queue_pb2_grpc

JOBS = 3
DOWN = 60
# Breaker and backoff both wait for longer the longer it was down.
PATIENCE = 600

place, binary, protos = sys.argv[1:]
here = pathlib.Path(__file__).parent


class Api(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def read_lines(worker, rows):
    for line in worker.stdout:
        rows.append(json.loads(line))


def main(data, running):
    def start(*command, **options):
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=data, **options))
        return running[-1]

    server = start(binary, "serve", "--data", f"{data}/data", "--listen", "127.0.0.1:0", stderr=open(f"{data}/log", "w"))
    address = next(line.split()[1] for line in server.stdout if line.strip().startswith("gRPC"))
    port = free_port()
    api = f"http://127.0.0.1:{port}/"
    channel = grpc.insecure_channel(address)
    queue, admin = queue_pb2_grpc.QueueServiceStub(channel), admin_pb2_grpc.AdminServiceStub(channel)
    commands = {
        "Python": [sys.executable, here / "python/outage.py", address, "python", api],
        "Node": ["node", f"{place}/node/outage.mjs", address, "node", api, protos],
        "Go": [f"{place}/bin/outage", address, "go", api],
    }
    nacks = {language: [] for language in commands}
    down_since = time.monotonic()
    for language, command in commands.items():
        for at in range(JOBS):
            queue.Enqueue(queue_pb2.EnqueueRequest(queue=language.lower(), type="call-api", job_id=f"{language}-{at}"))
        worker = start(*map(str, command))
        threading.Thread(target=read_lines, args=(worker, nacks[language]), daemon=True).start()
    time.sleep(DOWN)
    up = time.monotonic()
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", port), Api)
    threading.Thread(target=listening.serve_forever, daemon=True).start()

    stats = lambda language: admin.GetStats(admin_pb2.GetStatsRequest(queue=language.lower()))
    done = {}
    while len(done) < len(commands) and time.monotonic() - up < PATIENCE:
        if any(process.poll() is not None for process in running):
            sys.exit("the server or a worker has ended")
        for language in commands.keys() - done.keys():
            now = stats(language)
            if now.completed + now.dead_lettered >= JOBS:
                done[language] = time.monotonic() - up
        time.sleep(0.2)

    good = True
    print(f"an API that is down for {up - down_since:.0f} s, {JOBS} jobs of each language, no configuration\n")
    print("| worker | what a Nack says of the error | Nacks | done | dead | all done after the API was back |")
    print("|---|---|---|---|---|---|")
    for language, rows in nacks.items():
        now, first = stats(language), rows[0] if rows else {}
        said = ", ".join(f"{name} {first[name]!r}" for name in ("type", "code", "message") if first.get(name))
        took = f"{done[language]:.0f} s" if language in done else f"not within {PATIENCE} s"
        print(f"| {language} | {said} | {len(rows)} | {now.completed} | {now.dead_lettered} | {took} |")
        good &= now.completed == JOBS and now.dead_lettered == 0
    print()
    for language, rows in nacks.items():
        explanations = [row["explanation"] for row in rows]
        print(f"{language}: {explanations[0] if explanations else 'never nacked'}")
        good &= bool(explanations) and all("patient, because the failure is unreachable" in it for it in explanations)
    return good


if __name__ == "__main__":
    running = []
    with tempfile.TemporaryDirectory() as data:
        try:
            good = main(data, running)
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait()
    sys.exit(None if good else "a job died, was not done, or was retried without patience")
