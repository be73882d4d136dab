"""Starts what fails, runs the program of each language against it, and writes their rows into one file.

    errors.py PLACE FILE
"""

import glob
import json
import os
import re
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What stands in the rows for the ports of this run.
SHOWN = {"refused": 8081, "reset": 8082, "silent": 8083, "http": 8080, "tls": 8443, "postgres": 5432, "redis": 6379}
COLUMNS = ["language", "library", "fault", "type", "code", "http_status", "message"]


class Answers(BaseHTTPRequestHandler):
    """GET /404 is answered with 404, and so on."""

    def do_GET(self):
        self.send_response(int(self.path[1:]))
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def listener():
    listening = socket.create_server(("127.0.0.1", 0))
    return listening, listening.getsockname()[1]


def serve(listening, handle):
    def loop():
        while True:
            handle(listening.accept()[0])

    threading.Thread(target=loop, daemon=True).start()


def reset(connection):
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def start_tcp(folder):
    """The ports that fail, and HTTP with and without TLS."""
    ports = {}
    # Bound, so that no one else gets it, but not listening.
    refused = socket.socket()
    refused.bind(("127.0.0.1", 0))
    ports["refused"] = refused.getsockname()[1]
    resetting, ports["reset"] = listener()
    serve(resetting, reset)
    silent, ports["silent"] = listener()
    kept = [refused]
    serve(silent, kept.append)
    for name in ["http", "tls"]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        if name == "tls":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder + "/cert.pem", folder + "/key.pem")
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            server.handle_error = lambda *_: None
        ports[name] = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
    return ports, kept


def free_port():
    listening, port = listener()
    listening.close()
    return port


def start_postgres(folder, port):
    """With a certificate that is not trusted."""
    bin = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
    data = folder + "/postgres"
    # It refuses to run as root.
    user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    if user:
        subprocess.run(["chown", "-R", "postgres", folder], check=True)
    subprocess.run([*user, bin + "/initdb", "-U", "postgres", "-A", "trust", "-D", data], check=True, stdout=subprocess.DEVNULL)
    settings = {
        "port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": folder, "fsync": "off",
        "ssl": "on", "ssl_cert_file": folder + "/cert.pem", "ssl_key_file": folder + "/key.pem",
        "deadlock_timeout": "100ms", "lc_messages": "C",
    }
    options = [word for key, value in settings.items() for word in ["-c", f"{key}={value}"]]
    log = open(folder + "/postgres.log", "w")
    server = subprocess.Popen([*user, bin + "/postgres", "-D", data, *options], stdout=log, stderr=log, cwd="/")
    await_port(port)
    return server


def await_port(port):
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nothing listens on {port}")


def plain(message, ports):
    """Without what is different in each run."""
    for name, port in ports.items():
        message = message.replace(str(port), str(SHOWN[name]))
    message = re.sub(r"127\.0\.0\.1:\d{5}->", "127.0.0.1:50000->", message)
    message = re.sub(r"0x[0-9a-f]{8,}", "0x7f0000000000", message)
    message = re.sub(r"(Process|process|transaction) \d+", r"\1 1000", message)
    message = re.sub(r"\d+\.\d+\.\d+\.\d+:53\b", "192.0.2.1:53", message)
    return message.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", " ")


def main(place, file):
    here = os.path.dirname(os.path.abspath(__file__))
    programs = {
        "Python": [sys.executable, here + "/python/errors.py"],
        "Node": ["node", place + "/node/errors.mjs"],
        "Go": [place + "/bin/errors"],
    }
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        names = ["-keyout", folder + "/key.pem", "-out", folder + "/cert.pem", "-subj", "/CN=localhost"]
        also = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *also]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        ports, kept = start_tcp(folder)
        ports |= {"postgres": free_port(), "redis": free_port()}
        postgres = start_postgres(folder, ports["postgres"])
        redis = subprocess.Popen(["redis-server", "--port", str(ports["redis"]), "--save", ""], stdout=subprocess.DEVNULL)
        try:
            await_port(ports["redis"])
            rows, versions = [], []
            for language, command in programs.items():
                # Messages in English, and no proxy between a library and its fault.
                environment = {"PATH": os.environ["PATH"], "HOME": folder, "LC_ALL": "C", "PORTS": json.dumps(ports)}
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                for line in done.stdout.splitlines():
                    row = json.loads(line)
                    if "versions" in row:
                        versions.append(f"# {row['versions']}")
                        continue
                    row["message"] = plain(row["message"], ports)
                    rows.append("\t".join([language, *(str(row[column]) for column in COLUMNS[1:])]))
        finally:
            for process in [postgres, redis]:
                process.terminate()
                process.wait()
    head = ["# Made by script/errors-by-language: what real libraries say about real faults.", *versions, "\t".join(COLUMNS)]
    with open(file, "w") as out:
        out.write("\n".join(head + rows) + "\n")
    print(f"{len(rows)} rows in {file}")


main(*sys.argv[1:])
