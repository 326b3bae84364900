"""Many trajectories at once: the groups of a step, or the tasks of an evaluation."""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Sequence

from torl.errors import Bug, TorlError, WorldFault
from torl.rollout.agent import Agent, run_episode
from torl.samplers.base import Seed, Session
from torl.types import Group, Task, Trajectory

log = logging.getLogger("torl")

Judge = Callable[[Trajectory], Awaitable[None]]
"""Fills in a trajectory's reward. Raises WorldFault when it could not be decided."""

OnDone = Callable[[Trajectory | None], None]
"""Told of each trajectory as it ends; None when it was lost to the world's fault."""


async def collect(
    agent: Agent,
    tasks: Sequence[Task],
    group_size: int,
    judge: Judge,
    *,
    seed: Seed,
    on_done: OnDone = lambda _: None,
    retries: int = 0,
) -> list[Group]:
    """``group_size`` trajectories of each task, judged. ``seed`` names the batch, e.g.
    (run seed, step). Trajectories lost to the world's faults are dropped and counted.
    Raises Bug, naming the trajectory, for any error of ours."""

    async def one(task: Task, sample: int, session: Session) -> Trajectory | None:
        stream = (*seed, zlib.crc32(task.id.encode()), sample)
        for attempt in range(retries + 1):
            if attempt > 0:  # the same stream again: a retry changes nothing but the weather
                session = agent.sampler.open(agent.encode_prompt(task), [stream])[0]
            try:
                trajectory = await run_episode(agent, task, sample, session)
                await judge(trajectory)
            except WorldFault as fault:
                log.warning("trajectory %s#%d is lost: %s", task.id, sample, fault)
                trajectory = None
            except TorlError:
                raise
            except Exception as error:
                raise Bug(f"{task.id}#{sample}: {type(error).__name__}: {error}") from error
            finally:
                session.close()
            if trajectory is not None:
                break
        on_done(trajectory)
        return trajectory

    async def group(task: Task) -> Group:
        streams = [(*seed, zlib.crc32(task.id.encode()), n) for n in range(group_size)]
        sessions = agent.sampler.open(agent.encode_prompt(task), streams)
        async with asyncio.TaskGroup() as jobs:
            running = [jobs.create_task(one(task, n, s)) for n, s in enumerate(sessions)]
        done = [job.result() for job in running]
        return Group(task, [t for t in done if t is not None], dropped=sum(t is None for t in done))

    try:
        async with asyncio.TaskGroup() as jobs:
            groups = [jobs.create_task(group(task)) for task in tasks]
    except BaseExceptionGroup as several:
        raise _first(several) from several
    return [job.result() for job in groups]


def _first(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first plain exception of a nested group: one clear error, the rest as its cause."""
    error: BaseException = several
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
