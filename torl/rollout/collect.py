"""Many trajectories at once: the groups of a step, or the tasks of an evaluation."""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from torl.errors import Bug, UserError, WorldFault
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
    Raises Bug, naming the trajectory, for any error of ours. However it ends, no session
    stays open."""
    opened: list[Session] = []

    async def one(episode: _Episode, session: Session) -> Trajectory | None:
        trajectory = await episode.attempt(session, retries)
        on_done(trajectory)
        return trajectory

    def start(task: Task, jobs: asyncio.TaskGroup) -> list[asyncio.Task[Trajectory | None]]:
        prompt_ids = agent.encode_prompt(task)
        streams = [(*seed, zlib.crc32(task.id.encode()), n) for n in range(group_size)]
        episodes = [_Episode(agent, judge, task, n, prompt_ids, s) for n, s in enumerate(streams)]
        sessions = agent.sampler.open(prompt_ids, streams)
        opened.extend(sessions)
        return [jobs.create_task(one(e, s)) for e, s in zip(episodes, sessions, strict=True)]

    failure: BaseException
    try:
        async with asyncio.TaskGroup() as jobs:
            running = [start(task, jobs) for task in tasks]
        return [_group(task, done) for task, done in zip(tasks, running, strict=True)]
    except BaseExceptionGroup as several:
        failure = _first(several)
    finally:  # also of those that were cancelled before they began
        for session in opened:
            session.close()
    raise failure  # out here it keeps its own cause, and does not get the group as its context


@dataclass(frozen=True)
class _Episode:
    """One trajectory to be made: as often as it takes, from one random stream."""

    agent: Agent
    judge: Judge
    task: Task
    sample: int
    prompt_ids: list[int]
    stream: Seed

    async def attempt(self, first: Session, retries: int) -> Trajectory | None:
        """The trajectory, or None when the world failed it ``retries`` + 1 times."""
        session: Session | None = first
        for left in reversed(range(retries + 1)):
            try:  # again with the same stream: a retry changes nothing but the weather
                session = session or self.agent.sampler.open(self.prompt_ids, [self.stream])[0]
                return await self.play(session)
            except WorldFault as fault:
                session = None
                fate = "is tried again" if left else "is lost"
                log.warning("trajectory %s#%d %s: %s", self.task.id, self.sample, fate, fault)
        return None

    async def play(self, session: Session) -> Trajectory:
        """One attempt. Raises WorldFault, or an error that ends the run."""
        name = f"{self.task.id}#{self.sample}"
        try:
            trajectory = await run_episode(self.agent, self.task, self.sample, session, self.prompt_ids)
            with self.agent.spent.on("reward"):
                await self.judge(trajectory)
            return trajectory
        except (WorldFault, UserError):
            raise
        except Exception as error:
            if isinstance(error, Bug) and name in str(error):
                raise
            raise Bug(f"{name}: {type(error).__name__}: {error}") from error
        finally:
            session.close()


def _group(task: Task, done: Sequence[asyncio.Task[Trajectory | None]]) -> Group:
    trajectories = [job.result() for job in done]
    kept = [t for t in trajectories if t is not None]
    return Group(task, kept, dropped=len(trajectories) - len(kept))


def _first(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first plain exception of a nested group: one clear error."""
    error: BaseException = several
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
