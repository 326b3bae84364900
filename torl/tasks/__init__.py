"""Tasks: what the policy is asked. Built-in generators, files, data sets of the hub.

- generators/  problems made here, seeded, with a difficulty dial; one function a kind
- rows.py      which columns hold the problem and the answer
- files.py     .jsonl, .json, .parquet, hf:owner/name
- load.py      the training and held-out tasks of a recipe
- stream.py    the tasks of each training step
"""

from torl.tasks.generators import KINDS, generate
from torl.tasks.load import TaskSets, load_file, load_source, load_tasks
from torl.tasks.stream import TaskStream

__all__ = ["KINDS", "TaskSets", "TaskStream", "generate", "load_file", "load_source", "load_tasks"]
