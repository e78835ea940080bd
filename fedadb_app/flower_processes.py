"""Flower's SuperLink and SuperNode, with what Flower 1.42 fixes in its code set for hospitals.

The second page to review before ``<1.43`` is lifted, beside `flower_internals`: what runs in
processes of their own, below no run. Each function is the whole of a process, started with
`command`, and takes the options of Flower's own command. None of them imports torch, but for the
process that `executor` forks ClientApps from.
"""

import hashlib
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from multiprocessing import forkserver, get_context
from threading import RLock, Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedadb_app.polling import next_look

if TYPE_CHECKING:
    from flwr.supercore.superexec.executor.types import Executor

logger = logging.getLogger("flwr.fedadb")

IMPORTED_ONCE = (
    *("torch", "torch._dynamo", "numpy.random", "PIL.Image", "pydicom.pixels", "filelock"),
    *("pydantic", "safetensors.torch", "httpcore", "h11"),
    *("flwr.clientapp.mod", "flwr.serverapp.strategy", "flwr.supernode.runtime.run_clientapp"),
)
"""What a node's ClientApps find imported: all that this app needs and does not bring along itself.

The app's own modules are not among them: they are those of the run, which may be another version.
``torch._dynamo`` is what a ``torch.optim`` optimizer imports when the first one is made.
"""

_MILLISECONDS_FOR_LOCK = "30000"

_UNTIL_THERE: dict[str, Any] = {
    "initial_backoff": 0.05,
    "backoff_cap": 1.0,
    "max_tries_per_object": None,
}
"""How a message's parts are asked for that its sender is still sending: soon, and for as long as
Flower would. Its own second look comes after 1 s, the third 2 s later."""


def command(process: Callable[[], None]) -> list[str]:
    """Return the command that runs one of this module's functions as a process.

    No module may be found in the working directory (``-P``), and the process has no main module
    (``-c``), since forked ones would import it: they must not meet this version of the app.
    """
    call = f"from {__name__} import {process.__name__}; {process.__name__}()"
    return [sys.executable, "-P", "-c", call]


def superlink() -> None:
    """Be ``flower-superlink``, but with what messages hold in memory, even with a database.

    Flower 1.42 writes every tensor of every message into the SQLite file that also holds nodes and
    runs. SQLite has one writer at a time and no queue: with ten ResNet-18 that arrive together,
    somebody waits for longer than Flower's five seconds, the SuperLink answers 500, and its
    SuperExec ends (docs/deploy.md shows the smallest case). Nodes and runs stay in the file; the
    SuperLink's threads take turns there (`_write_in_turn`), and who waits for another process may
    wait as long as Flower's clients do for an answer.
    """
    from flwr.supercore.object_store import ObjectStoreFactory

    module = _module("flwr.superlink.cli.flower_superlink")

    def in_memory(database: str) -> ObjectStoreFactory:
        del database
        return ObjectStoreFactory()

    _module("flwr.superlink.config_loader").ObjectStoreFactory = in_memory
    sqlite = _module("flwr.supercore.sql_mixin")
    sqlite.SQLITE_PRAGMAS = (*sqlite.SQLITE_PRAGMAS, ("busy_timeout", _MILLISECONDS_FOR_LOCK))
    _write_in_turn(sqlite.SqlMixin, _module("flwr.supercore.corestate.sql_corestate").SqlCoreState)
    _end_with_superexec(module)
    sys.argv[0] = "flower-superlink"
    module.flower_superlink()


def supernode() -> None:
    """Be ``flower-supernode``, but with short waits and ClientApps that are forked.

    Flower 1.42 looks for messages every 3 s, for a reply every 0.5 s and for work every 1 s; here a
    look comes after a tenth of what has been waited already, and at most as late as Flower's. For
    parts of a message that have not come yet it looks as `_UNTIL_THERE` says.
    """
    from flwr.supernode.cli.flower_supernode import flower_supernode

    module = _module("flwr.supernode.start_client_internal")
    module.time = _Impatient()
    module.pull_objects = partial(module.pull_objects, **_UNTIL_THERE)
    _end_with_superexec(module, command(executor))
    sys.argv[0] = "flower-supernode"
    flower_supernode()


def executor() -> None:
    """Be a node's ``flower-superexec``, but fork ClientApps instead of starting interpreters."""

    def forking(*args: object, **kwargs: object) -> "Executor":
        del args, kwargs  # Flower's choice of other executors, of which a SuperNode makes no use
        return _forking_executor(waits)

    waits = _Impatient()
    module = _module("flwr.supercore.superexec.run_superexec")
    module.time, module.get_executor = waits, forking
    sys.argv[0] = "flower-superexec"
    _module("flwr.supercore.cli.flower_superexec").flower_superexec()


def _forking_executor(waits: "_Impatient") -> "Executor":
    """Return an executor whose ClientApps are forks of a process that has imported much already.

    After each of them, waiting for the next begins anew.
    """
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
    from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
    from flwr.supercore.tls import validate_and_resolve_root_certificates

    forks = get_context("forkserver")
    forks.set_forkserver_preload(list(IMPORTED_ONCE))
    forkserver.ensure_running()  # it imports before the first message comes

    class ForkingExecutor(SubprocessExecutor):
        def launch(self, spec: ExecutionSpec) -> LaunchResult:
            waits.begin_anew()
            if spec.task_type != TaskType.CLIENT_APP or spec.runtime_dependency_install:
                return super().launch(spec)
            certificates = validate_and_resolve_root_certificates(
                spec.root_certificates_path, spec.insecure
            )
            forks.Process(
                target=_clientapp,
                kwargs={
                    "runtime_api_address": spec.runtime_api_address,
                    "token": spec.token,
                    "insecure": spec.insecure,
                    "certificates": certificates,
                    "parent_pid": spec.parent_pid,
                },
            ).start()
            return LaunchResult.accepted()

    return ForkingExecutor()


def _clientapp(**options: Any) -> None:  # noqa: ANN401  # Flower's own
    """Be a node's ``flwr-clientapp``, a fork that holds no module of any version of the app."""
    module = _module("flwr.supernode.runtime.run_clientapp")
    module.pull_and_inflate_object_from_tree = partial(
        module.pull_and_inflate_object_from_tree, **_UNTIL_THERE
    )
    module.install_from_fab = partial(_install_once, module.install_from_fab)
    package = __name__.partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]  # this module was needed to get here; the run brings its own
    module.run_clientapp(**options)


def _install_once(install: Callable[..., object], bundle: bytes, **options: Any) -> None:  # noqa: ANN401
    """Install a run's app unless it is there; Flower unpacks and checks it for each message."""
    module = _module("flwr.cli.install")
    digest = hashlib.sha256(bundle).hexdigest()[: module.FAB_HASH_TRUNCATION]
    if not any((module.get_flwr_home() / module.APP_DIR).glob(f"*.{digest}")):
        install(bundle, **options)


class _Impatient:
    """Stands in for ``time`` in Flower's loops: waits as `next_look` says."""

    def __init__(self) -> None:
        self._wait, self._since = 0.0, 0.0

    def begin_anew(self) -> None:
        """Count no earlier waiting."""
        self._wait = 0.0

    def sleep(self, seconds: float) -> None:
        """Sleep for at most so long; another number of seconds than before is another wait."""
        now = time.monotonic()
        if seconds != self._wait:
            self._wait, self._since = seconds, now
        time.sleep(next_look(now - self._since, longest=seconds))


def _module(name: str) -> Any:  # noqa: ANN401  # a module's names may be given other values
    return import_module(name)


def _write_in_turn(database: Any, tasks: Any) -> None:  # noqa: ANN401  # classes of Flower
    """Let threads wait for each other where SQLite lets them sleep and try again.

    Every object of a message is a request with four or five transactions, of which two look for
    tasks without a heartbeat, and so take the lock; here one of them a second does.
    """
    turn, session, cleanup = RLock(), database.session, tasks._cleanup_expired_task_tokens
    looked = -math.inf

    @contextmanager
    def in_turn(self: Any) -> Iterator[Any]:  # noqa: ANN401
        with turn, session(self) as transaction:
            yield transaction

    def seldom(self: Any) -> None:  # noqa: ANN401
        nonlocal looked
        if time.monotonic() - looked > 1:
            looked = time.monotonic()
            cleanup(self)

    database.session, tasks._cleanup_expired_task_tokens = in_turn, seldom


def _end_with_superexec(module: Any, instead: list[str] | None = None) -> None:  # noqa: ANN401
    """End this process when the SuperExec has ended that a module of Flower starts.

    Without its SuperExec, Flower's process goes on and does no work; ended, systemd starts both.

    Parameters
    ----------
    module : Any
        Whose ``subprocess.Popen`` is called for the SuperExec, and for nothing else.
    instead : list of str, optional
        The command to start instead; it is given the same options.
    """

    def popen(words: list[str], **kwargs: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
        process = subprocess.Popen([*(instead or words[:1]), *words[1:]], **kwargs)

        def watch() -> None:
            code = process.wait()
            logger.error("the SuperExec has ended with %d, so this process ends", code)
            os.kill(os.getpid(), signal.SIGTERM)

        Thread(target=watch, daemon=True).start()
        return process

    module.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
