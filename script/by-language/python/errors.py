"""What Python's libraries raise. A row for each fault: what a handler has that knows no library."""

import errno
import json
import os
import platform
import sys
import threading
import urllib.request

import httpx
import psycopg
import redis
import requests

PORTS = json.loads(os.environ["PORTS"])
STATUSES = [404, 422, 429, 500, 503]


def failure(error):
    code = getattr(error, "sqlstate", None) or getattr(error, "code", None)
    if code is None and isinstance(error, OSError):
        code = errno.errorcode.get(error.errno)
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    return {"type": type(error).__name__, "code": code or "", "http_status": status or "", "message": str(error)}


def row(library, fault, call):
    try:
        call()
    except Exception as error:
        print(json.dumps({"library": library, "fault": fault, **failure(error)}))
        return
    sys.exit(f"{library}, {fault}: nothing was raised")


def http(library, get):
    at = lambda name: f"http://127.0.0.1:{PORTS[name]}/200"
    row(library, "refused", lambda: get(at("refused")))
    row(library, "reset", lambda: get(at("reset")))
    row(library, "DNS", lambda: get("http://nowhere.invalid/"))
    row(library, "TLS", lambda: get(f"https://127.0.0.1:{PORTS['tls']}/200"))
    row(library, "timeout", lambda: get(at("silent")))
    for status in STATUSES:
        row(library, "validation" if status == 422 else status, lambda: get(f"http://127.0.0.1:{PORTS['http']}/{status}"))


def postgres(name="postgres", host="127.0.0.1", **options):
    return psycopg.connect(host=host, port=PORTS[name], user="postgres", dbname="postgres", connect_timeout=2, **options)


def deadlock():
    """Each has one row and waits for the other's. One of the two gets the error."""
    with postgres(autocommit=True) as setup:
        setup.execute("drop table if exists pair")
        setup.execute("create table pair as select generate_series(1, 2) as id, 0 as n")
    both, raised = threading.Barrier(2), []

    def transaction(first, second):
        try:
            with postgres() as connection:
                connection.execute("update pair set n = 1 where id = %s", [first])
                both.wait()
                connection.execute("update pair set n = 1 where id = %s", [second])
        except psycopg.Error as error:
            raised.append(error)

    threads = [threading.Thread(target=transaction, args=pair) for pair in [(1, 2), (2, 1)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raise raised[0]


def execute(statement, **options):
    with postgres(**options) as connection:
        connection.execute(statement)


def sql():
    library = "psycopg"
    row(library, "refused", lambda: postgres("refused"))
    row(library, "reset", lambda: postgres("reset"))
    row(library, "DNS", lambda: postgres(host="nowhere.invalid"))
    row(library, "TLS", lambda: postgres(sslmode="verify-full", sslrootcert="system"))
    row(library, "timeout", lambda: postgres("silent"))
    row(library, "timeout of a statement", lambda: execute("select pg_sleep(9)", options="-c statement_timeout=100"))
    row(library, "shutdown", lambda: execute("select pg_terminate_backend(pg_backend_pid())"))
    row(library, "deadlock", deadlock)
    row(library, "validation", lambda: execute("create temp table t (n int not null); insert into t values (null)"))


def redis_client(name="redis", host="127.0.0.1", **options):
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    return redis.Redis(host=host, port=PORTS[name], socket_timeout=0.3, retry=retry, **options)


def changed_while_watched():
    with redis_client().pipeline() as pipe:
        pipe.watch("key")
        redis_client().set("key", 1)
        pipe.multi()
        pipe.set("key", 2)
        pipe.execute()


def cache():
    library = "redis"
    row(library, "refused", redis_client("refused").ping)
    row(library, "reset", redis_client("reset").ping)
    row(library, "DNS", redis_client(host="nowhere.invalid").ping)
    row(library, "TLS", redis_client("tls", ssl=True).ping)
    row(library, "timeout", redis_client("silent").ping)
    row(library, "changed while watched", changed_while_watched)


libraries = [requests, httpx, psycopg, redis]
names = ", ".join(f"{library.__name__} {library.__version__}" for library in libraries)
print(json.dumps({"versions": f"Python {platform.python_version()}, {names}"}))
http("urllib", lambda url: urllib.request.urlopen(url, timeout=0.3).read())
http("requests", lambda url: requests.get(url, timeout=0.3).raise_for_status())
http("httpx", lambda url: httpx.get(url, timeout=0.3).raise_for_status())
sql()
cache()
