"""The three kinds of failure, never mixed.

    TorlError
    ├── UserError         something the user gave is wrong: what, the choices, the remedy
    │   └── RunHalted         the run cannot go on until the user has seen to it: saved, to be resumed
    ├── ModelMistake      the model's own fault: it reads the text and the trajectory trains
    ├── WorldFault        the world's fault: the trajectory is invalid, retried or dropped, counted
    │   ├── SandboxFault      the sandbox died, not the code in it
    │   ├── SamplerFault      the engine that samples failed
    │   └── VerifierFault     the checker hung, died or could not decide
    └── Bug               ours: a crash that names the trajectory

A fault of the world never becomes a reward: that would train the model on our outage.
"""


class TorlError(Exception):
    """Root of every error that torl raises on purpose."""


class UserError(TorlError):
    """A recipe, file or command is wrong. The message names what, the choices and the remedy."""


class RunHalted(UserError):
    """A run cannot go on until the user has seen to something (a budget is spent, a service refuses). The
    steps that are done are saved; the one at hand is not trained on, and is made again by --resume."""


class ModelMistake(TorlError):
    """The policy's call was wrong. The text is shown to the policy as its observation."""


class WorldFault(TorlError):
    """Something outside the policy failed. The trajectory is invalid and never rewarded."""


class SandboxFault(WorldFault):
    """The sandbox failed to run the code (a worker died, no process could be had)."""


class SamplerFault(WorldFault):
    """The sampler failed to give tokens, or gave tokens without a usable log-probability."""


class VerifierFault(WorldFault):
    """The answer checker hung, died or could not decide. Never a reward of 0."""


class Bug(TorlError):
    """An invariant of torl is broken. The message names the trajectory."""
