"""Our side of the comparison with LeRobot: checkpoints, questions, and this package's answers.

    PYTHONPATH=tests/policy python tests/lerobot/parity_ours.py DIR

`DIR` is filled: `release` and `export` (whole checkpoints), `tables_*` (small files alone), `questions.*`, `ours.*`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from parity_exchange import (
    ASKED,
    CHECKPOINTS,
    KEYS,
    RUN_SEED,
    SIZES,
    SPOKEN,
    TABLES,
    TAG,
    TASKS,
    Answers,
    digest,
    versions,
)
from parity_release import WIDTH, answer_ids, drawn_weights, follow, unrepeated_answer, write_release
from policy_support import RELEASED_STREAM, smooth_chunks

from vla_rl.policy.export import export_policy
from vla_rl.policy.flow import integrate, own_expert, prompt_keys_values
from vla_rl.policy.flow_sampler import FlowSampler
from vla_rl.policy.joint_frames import RIG, V21, Angles
from vla_rl.policy.metadata import read_metadata
from vla_rl.policy.noise import flow_noise
from vla_rl.policy.normalise import NormStats
from vla_rl.policy.policy import VlaPolicy, load_policy
from vla_rl.policy.prompt import Observation, state_bins
from vla_rl.policy.reference import read_answer
from vla_rl.policy.sampler import REFERENCE, GrammarSampler, PredictRequest
from vla_rl.policy.sources import Sources, read_config, read_framed_tables
from vla_rl.policy.tokenizer import TURN_END
from vla_rl.policy.weightfiles import WeightFiles

STATES, CHUNKS, FORCED = 400, 40, 20


def loaded(directory: Path, task: str, head: str = "flow") -> VlaPolicy:
    return load_policy(checkpoint=str(directory), device="cpu", serve_head=head, task=task, norm_tag=TAG)


@torch.no_grad()
def change(policy: VlaPolicy) -> None:
    """Stands for training: every weight moves a little, the token head learns another answer."""
    rng, expert = np.random.default_rng(21), own_expert(policy)
    for _, weight in [*sorted(policy.model.named_parameters()), *sorted(expert.named_parameters())]:
        weight += torch.from_numpy(rng.standard_normal(tuple(weight.shape), dtype=np.float32)) * 0.01
    head = policy.model.get_output_embeddings().weight
    table = policy.model.get_input_embeddings().weight.detach().numpy()
    ids = answer_ids(policy.tokenizer, unrepeated_answer(policy.codec, 2))
    changed = drawn_weights(policy.origin.opened.raw)["lm_head.weight"]  # as before it learned the first answer
    follow(changed, table, ids, strength=0.25)
    head.copy_(torch.from_numpy(changed))


def streams(policy: VlaPolicy) -> list[list[int]]:
    """Token ids of answers, good and bad, as a network might write them."""
    block, rng = policy.prompt.ids.action_block, np.random.default_rng(22)
    start, end, text = block - 2, block - 1, policy.tokenizer.token_to_id("a")
    good = [block + b for b in RELEASED_STREAM]
    # Single levels only, among them the space before a full stop, an exclamation mark and an apostrophe.
    single = [block + int(b) for b in rng.integers(0, 122, 180)]
    single[3:11] = [block + ord(c) for c in " . ! 's "]
    turned = policy.tokenizer.token_to_id(TURN_END)
    written = [
        [start, *good, end],
        [start, *single, end],
        good,  # no scaffold at all
        [text, start, text, *good[:4], text, *good[4:], end, *good],  # text in the span, more after it
        [block + 5, start, *good],  # something before, never closed
        [start, *good[:-1], end],  # too short
        [start, *good, block + 55, end],  # too long, no whole tick
        [start, *good, *[block + 55] * 6, end],  # too long by a tick
        [start, *good, block + 1500, end],  # a bin of the block that the artifact never learned
        [start, block + 1500, end],  # nothing else
        [start, end],  # nothing at all
    ]
    return [[*ids, turned] for ids in written]


def questions(policy: VlaPolicy) -> Answers:
    """Pictures, joint angles in degrees of the rig, normalised actions, noise, streams."""
    rng = np.random.default_rng(23)
    low, high = policy.stats.state.low_deg, policy.stats.state.high_deg
    ends = [Angles(table, V21).to(RIG).degrees for table in (low, high)]
    rig_low, rig_high = np.minimum(*ends), np.maximum(*ends)
    spread = rig_high - rig_low
    states = rng.uniform(rig_low - 0.2 * spread, rig_high + 0.2 * spread, (STATES, 6))
    states[0], states[1], states[2], states[3] = rig_low, rig_high, (rig_low + rig_high) / 2, 0.0
    states[4], states[5] = rig_low - 400, rig_high + 400
    states[6], states[7] = [np.nan, np.inf, -np.inf, 10, -10, np.nan], [1e6, -1e6, 90, 180, -180, 1e-6]
    arrays = {
        "state": states.astype(np.float32),  # a robot driver and LeRobot hand over float32
        "action": rng.uniform(-1.4, 1.4, (CHUNKS, 30, 6)).astype(np.float32),
        "chunk": policy.stats.action.normalise(smooth_chunks(CHUNKS, 4) * 0.3).astype(np.float32),
        "forced": rng.integers(0, WIDTH, (len(SIZES), FORCED)),
    }
    for i, (height, width) in enumerate(SIZES):
        arrays[f"frames/{i}"] = rng.integers(0, 256, (2, height, width, 3)).astype(np.uint8)
    arrays["frames/1"][0], arrays["frames/1"][1, :30] = 255, 0
    keys = [(RUN_SEED, draw, seed, replan) for seed, draw, replan in KEYS]
    noise = flow_noise("documented", keys, ticks=30, width=32, device="cpu")
    arrays["noise"] = noise.numpy()
    return Answers(arrays, {"streams": streams(policy)})


def asked(given: Answers, i: int) -> Observation:
    """Question `i`: pictures of its size, a state of which some joints are out of range in the last."""
    state = given.arrays["state"][ASKED[i]].astype(np.float64)
    return Observation(given.arrays[f"frames/{i}"], state)


def network_answers(policy: VlaPolicy, given: Answers, said: Answers, name: str) -> None:
    """Everything that needs weights, for every question of one checkpoint."""
    noise = torch.from_numpy(given.arrays["noise"])
    for i in range(len(SIZES)):
        seen = asked(given, i)
        frames, bins = policy.frames_tensor([seen]), policy.state_tensor([seen])
        batch = policy.prompt_batch([seen])
        forced = torch.from_numpy(given.arrays["forced"][i])[None]
        with torch.no_grad():
            prompt = policy.model(**batch).logits[0, :-1]  # the last token is <action_start>
            taught = policy.logits(frames, bins, forced)[0]
            context = own_expert(policy).context(prompt_keys_values(policy, frames, bins))
            chunk = integrate(own_expert(policy), context, noise[i : i + 1], policy.dim)[0]
        said.arrays |= {
            f"{name}/prompt_ids/{i}": batch["input_ids"][0, :-1].numpy(),
            f"{name}/both_ways/{i}": batch["mm_token_type_ids"][0, :-1].numpy(),
            f"{name}/pixels/{i}": batch["pixel_values"].numpy(),
            f"{name}/pooling/{i}": batch["image_token_pooling"].numpy(),
            f"{name}/prompt_logits/{i}": prompt.numpy(),
            f"{name}/forced_logits/{i}": taught.numpy(),
            f"{name}/flow_chunk/{i}": chunk.numpy(),
        }
    tokens = GrammarSampler(batch_rows=1, policy=policy, run_seed=RUN_SEED, mode=REFERENCE)
    flow = FlowSampler(batch_rows=1, policy=policy, run_seed=RUN_SEED, keys="documented")
    for i, (seed, draw, replan) in enumerate(KEYS):  # pictures of several sizes make no batch
        request = PredictRequest(asked(given, i), seed=seed, draw=draw, replan=replan)
        written, flown = (sampler.sample([request], 0.0)[0] for sampler in (tokens, flow))
        assert written.fault is None, f"the token head of {name} writes no chunk: {written.fault}"
        said.arrays |= {
            f"{name}/token_chunk/{i}": policy.codec.decode([written.bins])[0],
            f"{name}/token_degrees/{i}": written.chunk_deg,
            f"{name}/flow_degrees/{i}": flown.chunk_deg,
        }


def prompt_answers(directory: Path, given: Answers, said: Answers) -> None:
    """Prompt ids of every task under ordinary and extreme states, on small pictures."""
    for k, task in enumerate(TASKS):
        spoken = loaded(directory, task, head="ar")
        states = given.arrays["state"][list(SPOKEN[k])].astype(np.float64)
        seen = [Observation(given.arrays["frames/0"], state) for state in states]
        said.arrays[f"task_ids/{k}"] = spoken.prompt_batch(seen)["input_ids"][:, :-1].numpy()


def table_answers(root: Path, given: Answers, said: Answers) -> None:
    """Normalised states, their bins, and actions in degrees of the rig, by three files of tables."""
    for name in TABLES:
        directory = root / name
        stats: NormStats = read_framed_tables(
            directory, Sources(TAG, None, None, None), read_metadata(directory), read_config(directory)
        ).stats
        state = stats.state.normalise(given.arrays["state"].astype(np.float64))
        said.arrays |= {
            f"{name}/state": state,
            f"{name}/state_bins": state_bins(state),
            f"{name}/action": stats.action.denormalise(given.arrays["action"].astype(np.float64)),
        }


def codec_answers(policy: VlaPolicy, given: Answers, said: Answers) -> None:
    """Streams of chunks, and what streams mean: a normalised chunk (zero for a faulty one), or nothing."""
    eos = policy.tokenizer.token_to_id(TURN_END)
    encoded = policy.codec.encode(given.arrays["chunk"], allow_holes=True)
    said.facts["labels"] = [bins.tolist() for bins in encoded]
    binless = []
    for n, ids in enumerate(given.facts["streams"]):
        answer = read_answer(policy, np.array(ids), np.zeros(len(ids)), eos)
        learned = answer.bins[policy.codec.lengths_V[answer.bins] > 0]
        zeros = np.zeros((1, policy.horizon, policy.dim))
        if len(answer.bins):
            said.arrays[f"stream/{n}"] = (policy.codec.decode([learned]) if answer.fault is None else zeros)[0]
        binless.append(not len(answer.bins))
    said.facts["streams_without_bins"] = binless


def main(root: Path) -> None:
    """Write checkpoints, questions and our answers into an empty or absent directory."""
    torch.set_num_threads(1)
    root.mkdir(parents=True, exist_ok=True)
    write_release(root)
    policy = loaded(root / "release", TASKS[0])
    given, said = questions(policy), Answers()
    given.save(root / "questions")
    changed = loaded(root / "release", TASKS[0])
    change(changed)
    export_policy(changed, root / "export", source={"kind": "comparison with LeRobot"})
    for name in CHECKPOINTS:
        network_answers(loaded(root / name, TASKS[0]), given, said, name)
        files = WeightFiles.open(root / name)
        stored = {entry: tensor.numpy() for entry, tensor in files.tensors(files.entries)}
        said.facts[f"{name}/weights"] = {"tensors": len(stored), "sha256": digest(stored)}
    prompt_answers(root / "release", given, said)
    table_answers(root, given, said)
    codec_answers(policy, given, said)
    said.facts["versions"] = versions("torch", "transformers", "tokenizers", "safetensors", "numpy")
    said.save(root / "ours")
    print(f"{len(said.arrays)} arrays of ours in {root}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
