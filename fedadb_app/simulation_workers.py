"""Ray's workers of a simulation: on every machine with the run's own code, and none that has died.

The third page to review before ``<1.43`` is lifted, beside `flower_internals` and
`flower_processes`: Flower's ``BasicActorPool`` is replaced in the process of a simulation, which
alone imports this module.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from flwr.app import Context, Message
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.ray_transport.ray_actor import BasicActorPool, pool_size_from_resources
from ray import ObjectRef
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError

Future = ObjectRef[Any]
Resources = dict[str, int | float]

_KNOWN_AFTER = 60.0  # seconds; Ray looks after a machine every few seconds


class LivingPool(BasicActorPool):
    """Flower's pool of workers, but for those whose process or machine has gone.

    Flower 1.42 puts such a worker back. It fails each client at once, is idle again, and so takes
    most clients of all later rounds from the workers that live.
    """

    def __init__(
        self,
        actor_type: type,
        client_resources: Resources,
        actor_kwargs: dict[str, Any],
    ) -> None:
        super().__init__(actor_type, client_resources, actor_kwargs)
        self._changed = threading.Condition()

    def submit(self, actor_fn: Callable[..., Future], job: tuple[Any, ...]) -> Future:
        """Submit a job to an idle worker; with fewer workers than threads, wait for one.

        Raises
        ------
        RuntimeError
            If all have died, and none can take their place.
        """
        with self._changed:
            while not self.pool:
                if not self.num_actors:
                    raise RuntimeError("no worker of the simulation is left")
                self._changed.wait()
            future: Future = super().submit(actor_fn, job)
            return future

    def fetch_result_and_return_actor_to_pool(self, future: Future) -> tuple[Message, Context]:
        """Return a job's result; a worker that has died with it is replaced if there is room."""
        try:
            reply: Message
            context: Context
            reply, context = super().fetch_result_and_return_actor_to_pool(future)
        except RayActorError:
            if _has_died(self._future_to_actor[future]):
                with self._changed:
                    del self._future_to_actor[future]
                    self.num_actors -= 1
                    if self.num_actors < _room(self.client_resources):
                        self.add_actors_to_pool(1)
                    self._changed.notify_all()
            raise
        return reply, context

    def add_actor_back_to_pool(self, future: Future) -> None:
        """Take a worker back that has done its job, or failed in it."""
        with self._changed:
            if future in self._future_to_actor:  # Flower also brings those that have died
                super().add_actor_back_to_pool(future)
                self._changed.notify_all()


def _has_died(actor: Any) -> bool:  # noqa: ANN401 - Ray makes its methods
    """Return whether a worker that could not be reached has died, as soon as Ray knows.

    A lost machine is known to be lost only some seconds later; until then a worker in its place
    would be sent there.
    """
    deadline = time.monotonic() + _KNOWN_AFTER
    while time.monotonic() < deadline:
        try:
            ray.get(actor.__ray_ready__.remote(), timeout=_KNOWN_AFTER)
        except ActorUnavailableError:
            time.sleep(0.5)
        except (RayActorError, GetTimeoutError):
            return True
        else:
            return False
    return True


def _room(client_resources: Resources) -> int:
    """Return how many workers fit on the machines that there are now."""
    try:
        return int(pool_size_from_resources(client_resources))
    except (ValueError, UnboundLocalError):  # Flower's ways to say: none
        return 0


def keep_living_workers() -> None:
    """Let Flower's Ray backend use the pool above."""
    vars(raybackend)["BasicActorPool"] = LivingPool


def join_cluster(bundle: Path) -> None:
    """Join the Ray cluster that ``RAY_ADDRESS`` names, and bring a run's code to its machines.

    Flower takes a Ray that is there already; its own call could not bring a folder. On a machine
    without the bundle workers would import whatever ``client_app.py`` is installed there.
    """
    ray.init(runtime_env={"working_dir": str(bundle)})
