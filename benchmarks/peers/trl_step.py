"""TRL's GRPOTrainer on the work of benchmarks.work.Step."""

import json
import sys
import tempfile
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.work import Step, reward


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *_, **__) -> None:
        self.start = time.perf_counter()

    def on_step_end(self, *_, **__) -> None:
        self.seconds.append(time.perf_counter() - self.start)


def main(model: str, work: dict, steps: int, micro: int, mixed: bool) -> dict:
    step, clock, lengths, calls = Step(**work), Clock(), [], []

    def judge(completion_ids, **_):
        lengths.append(sum(map(len, completion_ids)))
        calls.append(None)
        return [reward(len(calls), n) for n in range(len(completion_ids))]

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=mixed,
            per_device_train_batch_size=micro,  # all at once takes more than 20 GB
            gradient_accumulation_steps=step.samples // micro,
            num_generations=step.group,
            max_completion_length=step.new,
            generation_kwargs={"min_new_tokens": step.new},
            temperature=1.0,
            beta=0.0,
            learning_rate=1e-6,
            max_steps=steps + 1,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_steps=1,
        )
        texts = [text for n in range(steps + 1) for text in step.texts(n)]
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(
                model, dtype=torch.float32 if mixed else torch.bfloat16
            ),
            processing_class=AutoTokenizer.from_pretrained(model),
            reward_funcs=judge,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": text} for text in texts]),
            callbacks=[clock],
        )
        trainer.train()
    return {"name": step.name, "tokens": lengths[-1], "seconds": clock.seconds[1:]}


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
