"""Workers of a simulation that die: dropped, replaced where there is room, waited for."""

import threading
from typing import Any

import pytest
import ray
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.ray_transport import ray_actor
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    RayActorError,
)

from fedadb_app import simulation_workers
from fedadb_app.simulation_workers import LivingPool

JOB = ("app", "message", "7", "context")


class Machines:
    """Stands for Ray: so many CPUs, numbered workers, and jobs that end as they are told."""

    def __init__(self, patch: pytest.MonkeyPatch, cpus: int) -> None:
        self.cpus, self.made, self.results = cpus, 0, {}
        self.back: set[int] = set()  # workers that could not be reached, and live
        patch.setattr(ray, "nodes", lambda: [{"Resources": {"CPU": self.cpus}}] * (self.cpus > 0))
        patch.setattr(ray, "get", self.get)
        patch.setattr(simulation_workers, "_has_died", lambda worker: worker not in self.back)

    def options(self, **resources: Any) -> "Machines":
        return self

    def remote(self) -> int:
        self.made += 1
        return self.made

    def get(self, future: tuple[int, int]) -> Any:
        result = self.results.pop(future, ("7", "reply", "context"))
        if isinstance(result, Exception):
            raise result
        return result


@pytest.fixture
def machines(monkeypatch):
    return Machines(monkeypatch, cpus=2)


@pytest.fixture
def pool(machines):
    pool = LivingPool(machines, {"num_cpus": 1}, {})
    pool.add_actors_to_pool(pool.actors_capacity)
    return pool


def submitted(pool, number):
    return pool.submit(lambda actor, *job: (actor, number), JOB)


def fails(machines, pool, number, error):
    """Do what Flower does when a job fails."""
    future = submitted(pool, number)
    machines.results[future] = error
    with pytest.raises(type(error)):
        pool.fetch_result_and_return_actor_to_pool(future)
    pool.add_actor_back_to_pool(future)
    return future[0]


def test_a_worker_that_has_died_is_replaced_where_its_machine_is_still_there(machines, pool):
    dead = fails(machines, pool, 1, RayActorError())
    assert dead not in pool.pool
    assert len(pool.pool) == pool.num_actors == 2
    assert machines.made == 3


def test_a_worker_that_was_out_of_reach_for_a_moment_is_kept(machines, pool):
    machines.back = {1, 2}
    assert fails(machines, pool, 1, RayActorError()) in pool.pool
    assert pool.num_actors == machines.made == 2


class Worker:
    """What is said of it each time that it is asked."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.__ray_ready__ = self

    def remote(self) -> Exception | None:
        return self.answers.pop(0)


@pytest.mark.parametrize(
    ("answers", "died"),
    [
        ([None], False),
        ([ActorDiedError()], True),
        ([ActorUnavailableError("?", None)] * 2 + [None], False),
        ([ActorUnavailableError("?", None), ActorDiedError()], True),
        ([GetTimeoutError()], True),
    ],
)
def test_ray_says_after_a_while_who_has_died(monkeypatch, answers, died):
    def get(answer, timeout):
        if answer is not None:
            raise answer

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(simulation_workers.time, "sleep", lambda seconds: None)
    assert simulation_workers._has_died(Worker(*answers)) == died


def test_with_its_machine_it_is_gone(machines, pool):
    machines.cpus = 1
    dead = fails(machines, pool, 1, RayActorError())
    assert dead not in pool.pool
    assert len(pool.pool) == pool.num_actors == 1
    assert machines.made == 2
    assert submitted(pool, 2)[0] != dead


def test_a_client_that_has_failed_leaves_its_worker(machines, pool):
    worker = fails(machines, pool, 1, ValueError("the script says so"))
    assert worker in pool.pool
    assert pool.num_actors == machines.made == 2


def test_a_job_waits_for_one_of_the_workers_that_are_left(machines, pool):
    """Flower has as many threads as there were workers: with fewer, one of them must wait."""
    machines.cpus = 1
    fails(machines, pool, 1, RayActorError())
    first, found = submitted(pool, 2), []
    waiting = threading.Thread(target=lambda: found.append(submitted(pool, 3)))
    waiting.start()
    waiting.join(0.05)
    assert not found
    assert pool.fetch_result_and_return_actor_to_pool(first) == ("reply", "context")
    waiting.join(10)
    assert found == [(first[0], 3)]


def test_without_any_worker_every_job_fails_at_once(machines, pool):
    machines.cpus = 0
    for number in (1, 2):
        fails(machines, pool, number, RayActorError())
    with pytest.raises(RuntimeError, match="no worker of the simulation is left"):
        submitted(pool, 3)


def test_flowers_backend_takes_it(monkeypatch):
    monkeypatch.setattr(raybackend, "BasicActorPool", ray_actor.BasicActorPool)
    simulation_workers.keep_living_workers()
    assert raybackend.BasicActorPool is LivingPool
