"""A proxy that can be taken away and brought back: bytes go through it, in both directions."""

import socket
import threading
from contextlib import suppress

from flower.processes import free_port


class Relay:
    """Listens on a port of its own in front of another one of this machine.

    Attributes
    ----------
    port : int
        Where it listens, as long as it is up.
    """

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._open: list[socket.socket] = []

    def up(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def down(self) -> None:
        """Listen no more, and break off what is under way."""
        for end in [self._listener, *self._open]:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # it is down
            while True:
                caller, _ = listener.accept()
                answerer = socket.create_connection(("127.0.0.1", self._target))
                self._open += [caller, answerer]
                for pair in ((caller, answerer), (answerer, caller)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
