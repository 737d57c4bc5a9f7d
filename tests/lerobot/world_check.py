"""Our world under LeRobot's evaluation, and a policy of LeRobot's under ours; run where both are installed.

    HF_HUB_OFFLINE=1 python tests/lerobot/world_check.py DIR

The policy is an ACT that LeRobot itself trains for two steps on demonstrations that are recorded here. `DIR/world.json`
holds a line for everything that was checked, with what was seen and whether it is as it must be, and the versions. The
commands are those of docs/lerobot.md; the numbers behind them are compared in this process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.policies import make_policy, make_pre_post_processors
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.pretrained import PreTrainedPolicy
from lerobot.scripts.lerobot_eval import eval_policy, rollout
from lerobot_env_vla_rl import VlaRlEnvConfig
from parity_exchange import versions
from safetensors.torch import load_file, save_file

from vla_rl.config.compose import compose
from vla_rl.errors import VlaRlError
from vla_rl.evals.heldout import EvalResult, evaluate
from vla_rl.evals.looks import EpisodeWatcher
from vla_rl.policy.joint_frames import RIG, V21
from vla_rl.policy.lerobot import LeRobotPolicy, LeRobotSampler
from vla_rl.policy.prompt import Observation
from vla_rl.rl.reward import documented_reward
from vla_rl.sim.env import BoatToDisk
from vla_rl.sim.expert import ScriptedExpert

BIN = Path(sys.executable).parent
PROTOCOL, LOOK, PX, TICKS, STEPS = "sim100b-spawn2-h15", "lens", 64, 60, 15
SEEDS = (300, 301)
SCENE = [f"sim.protocol={PROTOCOL}", f"sim/look={LOOK}", f"sim.image_px={PX}", f"sim.max_ticks={TICKS}"]
ENV = [
    "--env.type=vla_rl", f"--env.protocol={PROTOCOL}", f"--env.look={LOOK}", f"--env.image_px={PX}",
    f"--env.episode_length={TICKS}",
]  # fmt: skip
TINY = [
    "--policy.type=act", "--policy.device=cpu", "--policy.push_to_hub=false", "--policy.dim_model=32",
    "--policy.pretrained_backbone_weights=null", "--policy.n_heads=2", "--policy.dim_feedforward=64",
    "--policy.n_encoder_layers=1", "--policy.n_vae_encoder_layers=1", "--policy.latent_dim=4",
    "--policy.chunk_size=30", f"--policy.n_action_steps={STEPS}",
]  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """One thing that was checked: in words, what was seen, whether that is as it must be."""

    what: str
    told: str
    ok: bool


def command(log: Path, *words: str, fails: bool = False) -> str:
    """Run a command of this environment; its output, which is kept.

    Raises:
        AssertionError: it ended otherwise than it must.
    """
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([str(BIN / words[0]), *words[1:]], capture_output=True, text=True, env=env, timeout=600)
    log.write_text(f"{' '.join(words)}\n{done.stdout}\n{done.stderr}")
    assert (done.returncode != 0) == fails, f"{log}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout + done.stderr


def trained(root: Path) -> tuple[Path, Seen]:
    """A checkpoint that LeRobot trained on our demonstrations, playing in our world on the way."""
    command(
        root / "demos.log", "vla-rl", "demos", "demos.seeds=100003-100004", *SCENE[:3], f"run.dir={root / 'demos'}",
    )  # fmt: skip
    output = command(
        root / "train.log", "lerobot-train", "--dataset.repo_id=local/demos", f"--dataset.root={root / 'demos'}", *TINY,
        *ENV, "--batch_size=4", "--num_workers=0", "--steps=2", "--save_freq=2", "--log_freq=1", "--env_eval_freq=2",
        "--eval.n_episodes=1", "--eval.batch_size=1", "--wandb.enable=false", f"--output_dir={root / 'trained'}",
    )  # fmt: skip
    checkpoint = root / "trained" / "checkpoints" / "000002" / "pretrained_model"
    played = re.search(r"Suite overall aggregated: .*'n_episodes': (\d+)", output)
    told = f"{played[1] if played else 'no'} episode during the training"
    what = "lerobot-train fits an ACT to our demonstrations and evaluates it in our world meanwhile"
    return checkpoint, Seen(what, told, bool(played) and checkpoint.is_dir())


def under_lerobot(root: Path, checkpoint: Path) -> list[Seen]:
    """`lerobot-eval` itself, with environments in processes of their own."""
    base = ["lerobot-eval", f"--policy.path={checkpoint}", "--policy.device=cpu", *ENV, "--eval.n_episodes=2"]
    command(
        root / "eval.log", *base, "--eval.batch_size=2", "--eval.use_async_envs=true", "--seed=300",
        f"--output_dir={root / 'theirs'}",
    )  # fmt: skip
    info = json.loads((root / "theirs" / "eval_info.json").read_text())["overall"]
    films = [Path(name) for name in info["video_paths"]]
    whole = info["n_episodes"] == 2 and len(films) == 2 and all(film.stat().st_size > 2000 for film in films)
    told = f"{info['n_episodes']} episodes, {info['pc_success']:g} % success, {len(films)} films"
    lines = [Seen(f"lerobot-eval --env.type=vla_rl, {PROTOCOL}, look {LOOK}, {PX} px", told, whole)]
    for change, problem in (
        (["--seed=100003"], "seed 100003 may not be used for eval"),
        (["--env.protocol=sim100c"], "unknown protocol 'sim100c'"),
        (["--env.look=foggy"], "the group sim/look has no option 'foggy'"),
        (["--env.fps=50"], "this world has no 50 Hz"),
    ):
        output = command(
            root / "refused.log", *base, "--eval.batch_size=1", "--seed=300", *change, f"--output_dir={root / 'no'}",
            fails=True,
        )  # fmt: skip
        lines.append(Seen(f"lerobot-eval {change[0]} is refused", problem, problem in output))
    code = "import sys, lerobot_env_vla_rl as e; e.VlaRlEnvConfig().create_envs(1);"
    code += (
        "print([m for m in sys.modules if m.startswith(('vla_rl.policy', 'vla_rl.rl', 'transformers.models.molmo2'))])"
    )
    loaded = command(root / "modules.log", "python", "-c", code).strip().splitlines()[-1]
    lines.append(Seen("modules of our policies that the environment imports", loaded, loaded == "[]"))
    return lines


def under_ours(root: Path, checkpoint: Path) -> list[Seen]:
    """`vla-rl eval policy=lerobot`, and `vla-rl compare` with the expert."""
    here = [*SCENE, "eval.seeds=300-301"]
    told = command(
        root / "ours.log", "vla-rl", "eval", "policy=lerobot", f"policy.checkpoint={checkpoint}", *here,
        f"run.dir={root / 'ours'}", "eval.traces=true",
    )  # fmt: skip
    record = json.loads((root / "ours" / "eval.json").read_text())
    summary, said = record["summary"], record["policy"]["lerobot"]
    rows = [row["seed"] for row in record["episodes"]] == list(SEEDS)
    files = all(
        (root / "ours" / name).exists() for name in ("contact_sheet.png", "traces.jsonl", *record["files"]["videos"])
    )
    reads = {"touched", "pinched", "lifted", "success_strict_low", "success_strict_high"} <= set(summary)
    convention = (said["joint_frame"], said["fps"], said["n_action_steps"]) == (RIG, 30, STEPS)
    lines = [
        Seen(
            "vla-rl eval policy=lerobot: rows by seed, funnel, intervals, sheet, film, traces, convention",
            f"{len(record['episodes'])} episodes, {summary['successes']} won, {said['type']}, {said['joint_frame']}",
            rows and files and reads and convention and "funnel" in told and summary["protocol"] == PROTOCOL,
        )
    ]
    command(
        root / "expert.log", "vla-rl", "eval", "policy=expert", *here, f"run.dir={root / 'expert'}", "--video", "none"
    )
    output = command(root / "compare.log", "vla-rl", "compare", str(root / "ours"), str(root / "expert"), "--json")
    compared = json.loads(output[output.index("{") :])
    fair = compared["kind"] == "two policies" and compared["seeds"] == "300-301"
    lines.append(Seen("vla-rl compare with the scripted expert", f"{compared['kind']}, {compared['seeds']}", fair))
    return lines


def our_policy(checkpoint: Path, *overrides: str) -> LeRobotPolicy:
    """The policy as `vla-rl eval` loads it."""
    reader = compose("eval", ["policy=lerobot", f"policy.checkpoint={checkpoint}", *SCENE, *overrides])
    return reader.component("policy", device="cpu", env_spec=reader.component_spec("sim"))


def our_episodes(policy: LeRobotPolicy) -> tuple[EvalResult, EpisodeWatcher]:
    """Both seeds by this package's own runner, in this process."""
    reader, watcher = compose("eval", ["pool=serial", *SCENE]), EpisodeWatcher(SEEDS)
    sampler = LeRobotSampler(policy=policy, run_seed=0, batch_rows=16)
    with reader.component("pool", env_spec=reader.component_spec("sim"), plugins=()) as pool:
        result = evaluate(
            sampler=sampler, pool=pool, reward=documented_reward(), seeds=SEEDS, temperature=0.0, slots=2, scene=None,
            watcher=watcher,
        )  # fmt: skip
    return result, watcher


def same_episodes(checkpoint: Path) -> list[Seen]:
    """The same policy, seeds and scene through both programs: every action and every metric."""
    policy = our_policy(checkpoint)
    result, watcher = our_episodes(policy)
    world = VlaRlEnvConfig(protocol=PROTOCOL, look=LOOK, image_px=PX, episode_length=TICKS)
    config = ACTConfig.from_pretrained(checkpoint)
    config.device, config.pretrained_path = "cpu", checkpoint
    theirs = make_policy(cfg=config, env_cfg=world).eval()
    before, after = make_pre_post_processors(config, str(checkpoint))
    environment, actions, differing = world.create_envs(1)["vla_rl"][0], 0.0, []
    moved, ticks = 0.0, 0
    for episode in result.episodes:
        seed = episode.spec.seed
        with torch.inference_mode():
            played = rollout(environment, theirs, *world.get_env_processors(), before, after, seeds=[seed])
        chunks = watcher.recording(seed, episode.metrics).chunks_deg
        ours, other = np.concatenate(chunks)[: episode.metrics["ticks"]], played["action"][0].double().numpy()
        assert ours.shape == other.shape, (ours.shape, other.shape)
        actions, moved = max(actions, float(np.abs(ours - other).max())), max(moved, float(np.ptp(ours, axis=0).max()))
        metrics, ticks = environment.call("metrics")[0].as_dict(), ticks + len(ours)
        differing += [name for name, value in metrics.items() if value != episode.metrics[name]]
    environment.close()
    return [
        Seen(
            f"actions of both programs over {ticks} ticks, degrees", f"{actions:.2g} apart", actions == 0 and moved > 1
        ),
        Seen("metrics of both programs", f"{len(metrics)} an episode, {len(differing)} differ", not differing),
    ]


class Replay(PreTrainedPolicy):
    """Plays joint targets, tick by tick, and holds the last ones; one list an environment."""

    config_class, name = ACTConfig, "replay"

    def __init__(self, targets_deg: list[np.ndarray]) -> None:
        torch.nn.Module.__init__(self)
        self._targets, self._tick = targets_deg, 0

    def reset(self) -> None:
        self._tick = 0

    def select_action(self, batch: dict[str, Any]) -> torch.Tensor:
        now = [targets[min(self._tick, len(targets) - 1)] for targets in self._targets]
        self._tick += 1
        return torch.from_numpy(np.stack(now))

    def get_optim_params(self) -> dict:
        return {}

    def forward(self, batch: dict[str, Any]) -> Any:
        raise NotImplementedError

    def predict_action_chunk(self, batch: dict[str, Any]) -> torch.Tensor:
        raise NotImplementedError


def success_is_strict() -> list[Seen]:
    """The expert's targets under LeRobot's own evaluation: whole, and stopped where the documented test first fires."""
    settings = compose("demos", ["sim.image_px=16"]).tree["sim"]
    expert = ScriptedExpert(BoatToDisk(**{key: value for key, value in settings.items() if key != "_target_"}))
    plays = [expert.run(seed, noise=None, record_every=10_000, render=False) for seed in SEEDS]
    held = [play.targets_deg[: play.metrics.success_tick + 1] for play in plays]
    world, lines = VlaRlEnvConfig(image_px=16, episode_length=300), []
    for what, targets, wanted in (
        ("success under LeRobot of the scripted expert's targets", [play.targets_deg for play in plays], True),
        ("the same, the hand kept closed once the documented test has passed", held, False),
    ):
        environment = world.create_envs(2)["vla_rl"][0]
        identity = world.get_env_processors()[0]
        info = eval_policy(
            environment,
            Replay(targets),
            *world.get_env_processors(),
            identity,
            lambda action: action,
            2,
            start_seed=300,
        )
        metrics = [each.as_dict() for each in environment.call("metrics")]
        environment.close()
        found = [row["success"] for row in info["per_episode"]]
        documented = [each["success_documented"] for each in metrics]
        prices = [row["sum_reward"] for row in info["per_episode"]]
        right = found == [wanted] * 2 == [each["success_strict"] for each in metrics] and all(documented)
        told = f"{sum(found)} of 2 (documented test: {sum(documented)} of 2)"
        lines.append(Seen(what, told, right and prices == [float(wanted)] * 2))
    return lines


def frames(root: Path, checkpoint: Path) -> list[Seen]:
    """The same weights with statistics in LeRobot's older joint frame: mapped on the way in and on the way out."""
    older = root / "v21"
    shutil.copytree(checkpoint, older)
    for path in older.glob("policy_*.safetensors"):
        state = load_file(path)
        for name in [
            name for name in state if re.fullmatch(r"(observation\.state|action)\.(min|max|mean|q\d\d)", name)
        ]:
            state[name] = state[name].clone()
            state[name][1], state[name][2] = 90 - state[name][1], state[name][2] + 90
        for low, high in (("min", "max"), ("q01", "q99")):
            for feature in ("observation.state", "action"):
                a, b = f"{feature}.{low}", f"{feature}.{high}"
                if a in state:
                    state[a][1], state[b][1] = state[b][1].clone(), state[a][1].clone()
        save_file(state, path)
    policy, rng = our_policy(older), np.random.default_rng(0)
    seen = Observation(rng.integers(0, 256, (2, PX, PX, 3), dtype=np.uint8), np.array([5.0, -60, 40, 60, 10, 20]))
    ours = policy.chunk_deg(seen)
    batch = {
        "observation.state": torch.tensor([[5.0, 90 + 60, 40 + 90, 60, 10, 20]]),
        **{
            f"observation.images.{name}": torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 255
            for name, picture in zip(("top", "wrist"), seen.frames, strict=True)
        },
        "task": [policy.task],
    }
    with torch.no_grad():
        chunk = policy.network.predict_action_chunk(policy.before(batch))[0, :STEPS]
        theirs = torch.cat([policy.after(action[None]) for action in chunk]).double().numpy()
    theirs[:, 1], theirs[:, 2] = 90 - theirs[:, 1], theirs[:, 2] - 90
    apart, different = (
        float(np.abs(ours - theirs).max()),
        float(np.abs(ours - our_policy(checkpoint).chunk_deg(seen)).max()),
    )
    return [
        Seen(
            "a policy in the joint frame v21: found by its statistics, mapped in and out",
            f"{policy.frame}, {apart:.2g} degrees apart",
            policy.frame == V21 and apart < 1e-4 and different > 1e-3,
        )
    ]


def refusals(root: Path, checkpoint: Path) -> list[Seen]:
    """Whatever does not fit ends in what, where and remedy, before anything is played."""
    damaged = root / "damaged"
    shutil.copytree(checkpoint, damaged)
    weights = load_file(damaged / "model.safetensors")
    weights.pop(sorted(weights)[0])
    save_file(weights, damaged / "model.safetensors")
    lines = []
    for change, problem in (
        (["sim.image_px=112"], "the pictures here are [3, 112, 112]"),
        (["sim.protocol=sim100b"], f"it executes {STEPS} actions before it looks again"),
        (["policy.n_action_steps=31"], "upper bound for the number of action steps"),
        (["policy.joint_frame=v21"], "its statistics are in the joint frame rig, not v21"),
        (["policy.top=observation.images.front"], "it wants the input observation.images.top"),
        (["policy.fps=50"], "its actions are for 50 Hz"),
        ([f"policy.checkpoint={damaged}"], "LeRobot cannot read this policy: Error(s) in loading state_dict"),
        ([f"policy.checkpoint={root}"], "no LeRobot checkpoint"),
    ):
        try:
            our_policy(checkpoint, *change)
            told = "nothing was refused"
        except VlaRlError as error:
            told = error.what.splitlines()[0] if error.where and error.remedy else "no where or remedy"
        name = change[0].replace(str(root), "DIR")
        lines.append(Seen(f"policy=lerobot {name} is refused", told.rstrip(":"), problem in told))
    return lines


def main(root: Path) -> int:
    started = time.monotonic()
    torch.set_num_threads(1)
    root.mkdir(parents=True, exist_ok=True)
    checkpoint, first = trained(root)
    parts: list[Callable[[], list[Seen]]] = [
        lambda: under_lerobot(root, checkpoint),
        lambda: under_ours(root, checkpoint),
        lambda: same_episodes(checkpoint),
        success_is_strict,
        lambda: frames(root, checkpoint),
        lambda: refusals(root, checkpoint),
    ]
    lines = [first, *(line for part in parts for line in part())]
    used = versions("lerobot", "torch", "transformers", "gymnasium", "mujoco", "numpy", "vla-rl", "lerobot_env_vla_rl")
    facts = {"lines": [asdict(line) for line in lines], "versions": used}
    (root / "world.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    for line in lines:
        print(f"{'ok   ' if line.ok else 'FAILS'} {line.what}: {line.told}")
    print(f"{time.monotonic() - started:.0f} s")
    return int(not all(line.ok for line in lines))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
