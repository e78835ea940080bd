"""A SuperLink to check against, and what is none."""

import contextlib
import http.server
import json
import ssl
import sys
import threading
import time
from email.utils import formatdate
from importlib import metadata
from types import SimpleNamespace

import pytest

from fedadb_app.errors import FedADBError

# What a SuperLink answers to one who would join with a heartbeat interval that it refuses.
KNOWN = (400, {"code": 2003, "detail": "Invalid heartbeat interval."})


@contextlib.contextmanager
def superlink(creds=None, status=200, clock=0.0, asked=None, admission=KNOWN):
    """An HTTP server that answers as a SuperLink does; over TLS where it has certificates.

    Its clock is ahead by `clock` seconds; what it is asked goes into `asked`.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(status, b"")

        def do_POST(self):
            self.answer(admission[0], json.dumps(admission[1]).encode())

        def answer(self, status, content):
            length = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(length)
            if asked is not None:
                asked.append((self.path, dict(self.headers), body))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

        def date_time_string(self, timestamp=None):
            return formatdate(time.time() + clock, usegmt=True)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if creds is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(creds / "server.crt", creds / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *args: None  # a refused handshake is no news here
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


OWN_DATA = {
    "dataset": "nodes",
    "classes": "0,1,2,3",
    "image_shape": "1x28x28",
    "evaluate": "clients",
}


def fails(check, settings):
    with pytest.raises(FedADBError) as caught:
        check(settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- the machine ----------------------------------------------------------------------------


def installed(monkeypatch, python=">=3.11", requires=("flwr>=1.42,<1.43", "torch>=2.5")):
    app = SimpleNamespace(metadata={"Requires-Python": python}, requires=list(requires))
    others = metadata.distribution
    monkeypatch.setattr(
        metadata, "distribution", lambda name: app if name == "fedadb-app" else others(name)
    )


connections = []
sys.addaudithook(
    lambda event, arguments: (
        connections.append(arguments[1]) if event in {"socket.connect", "socket.sendto"} else None
    )
)
