"""GRPO on a simulated manipulation task, top to bottom.

In: a policy with its sampler, a pool of environments, a surface, a reward, constants, a run directory, an `evaluate`
callable. Out: a trained policy in place, and the files of the run. The trainer knows nothing of configuration files,
registrations or terminals: it receives plain objects and reports through `on_event`.

One step is: a wave of seeds x draws episodes; a reward each; an advantage inside each seed's group; a clipped
token-level gradient pass over the rows of groups with spread and an AdamW step, once or several times; how far that
moved the policy; rows and counters on disk.

Deviations from GRPO (Shao et al., 2024, arXiv:2402.03300):
- an "output" is a whole episode of many action chunks; its advantage stands on every token of every chunk;
- the loss is averaged over all tokens of the wave, not per output first; `loss.weighting` has two other ways;
- groups whose rewards spread less than a floor are dropped (by choice also by success rate, and replaced by fresh
  ones), and nothing is added to the std that divides; `geometry.advantage` has three other estimators;
- the clip band is asymmetric ("clip-higher"), and with one gradient pass a wave it binds only against stored sampler
  log-probabilities (`loss.old_logp=recorded`): against the trainer's own the ratio is 1 by design;
- no KL term unless asked for (`loss.kl_beta`); the anchor is the policy at step 0, and the distance to it is measured.

Safe against `kill -9`: an episode is on disk when it ends, an update when its checkpoint is renamed into place, and
what was recorded later than the checkpoint is dropped and done again, bit for bit on a CPU.

How a wave is played: `waves`; what may stand in its place: `demonstrated`. What may stop a run: gates before the first
wave (`gates`), tripwires and budget while it runs (`guards`). How it ends, and what is kept then: `endings`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import torch

from vla_rl.config.schema import (
    BudgetConfig,
    CheckpointConfig,
    GatesConfig,
    GeometryConfig,
    LossConfig,
    OptimConfig,
    TripwiresConfig,
)
from vla_rl.policy.sampler import release
from vla_rl.rl import events, guards, preflight, rundir
from vla_rl.rl.account import Account
from vla_rl.rl.advantage import Advantages
from vla_rl.rl.anchor import Anchor
from vla_rl.rl.demonstrated import DemonstratedStage, RowsOf, check_constants
from vla_rl.rl.device import GIB
from vla_rl.rl.drift import Drift, measure, sample_rows
from vla_rl.rl.endings import Endings
from vla_rl.rl.gates import GateResult, Gates
from vla_rl.rl.guards import Guards
from vla_rl.rl.learner import Learner
from vla_rl.rl.loss import TokenLoss, grpo_loss
from vla_rl.rl.plan import Counters, Geometry, Outcome
from vla_rl.rl.pricing import KlCost, Pricing
from vla_rl.rl.promise import Promise
from vla_rl.rl.pulse import Pulse
from vla_rl.rl.reward import Reward
from vla_rl.rl.rowchecks import check_first
from vla_rl.rl.rundir import RunDir
from vla_rl.rl.savepoints import SavePoints, refuse_ended
from vla_rl.rl.settings import UpdateSettings
from vla_rl.rl.summary import Evaluation, Terms, episode_rows, mixed_groups_frac, train_row
from vla_rl.rl.surfaces import Surface
from vla_rl.rl.trained import check_recorded
from vla_rl.rl.updated import UpdateResult, no_update
from vla_rl.rl.waves import Stage, StoppedWave
from vla_rl.rl.wires import Firing
from vla_rl.rollout.events import Event, OnEvent, PredictRound, ignore
from vla_rl.rollout.pool import Pool
from vla_rl.rollout.wave import Wave
from vla_rl.seeds import check_use


class _OutOfTime(Exception):
    """The wall limit was reached inside a wave or an update: finished episodes are on disk, weights are untouched."""


class GrpoTrainer:
    """Runs GRPO steps until `steps` updates are done; see the module for what one step is.

    Args:
        policy: a `VlaPolicy`; its weights are changed in place.
        sampler: samples from that same policy.
        pool: environments.
        surface: which weights may move.
        reward: prices an episode.
        geometry, loss, optim, checkpoint: constants (vla_rl.config.schema); all are read here and now.
        token_loss: what computes the loss of a micro-batch.
        steps: updates of the whole run, also when it is resumed.
        slots: episodes that play side by side.
        max_replans: predicts of the longest possible episode, for the disk check.
        run_dir: an open `RunDir`; a run that it already holds is continued.
        evaluate: called with the number of updates done, before the first and after the last; returns an `Evaluation`.
            It should hand its progress to `beat`: time that is killed in it counts up to the last beat only.
        evaluate_at: after which other updates it is called too.
        guards: tripwires and budget; None for those of the defaults.
        gates: gates before the first wave; None for none but the preflight.
        demonstrations: rows that an update (from 1) learns from instead of a wave; None: waves are played.
        learner: makes what computes the updates; called with the arguments of `Learner`.
        max_wall_s: stop at the next safe point after this time: between two rounds of a wave, whose finished episodes
            the next launch takes from disk, or between micro-batches of an update, which is then repeated. None for no
            limit.
        on_event: told of everything that happens.

    Raises:
        ConfigError: constants that make no sense, training seeds outside the training bands, or a sampler that does
            not sample.
    """

    def __init__(
        self,
        *,
        policy: Any,
        sampler: Any,
        pool: Pool,
        surface: Surface,
        reward: Reward,
        geometry: GeometryConfig,
        loss: LossConfig,
        optim: OptimConfig,
        checkpoint: CheckpointConfig,
        steps: int,
        slots: int,
        max_replans: int,
        run_dir: RunDir,
        evaluate: Callable[[int], Evaluation],
        evaluate_at: Collection[int] = (),
        token_loss: TokenLoss = grpo_loss,
        guards: Guards | None = None,
        gates: Gates | None = None,
        demonstrations: RowsOf | None = None,
        learner: Callable[..., Learner] = Learner,
        max_wall_s: float | None = None,
        on_event: OnEvent = ignore,
    ) -> None:
        self.policy, self.sampler, self.pool = policy, sampler, pool
        self.geometry, self.settings = Geometry.of(geometry), UpdateSettings.of(loss, optim, token_loss)
        self.steps, self.slots, self.max_replans, self.max_wall_s = steps, slots, max_replans, max_wall_s
        self.run_dir, self.evaluate, self.on_event = run_dir, evaluate, on_event
        self.evaluate_at = {0, *evaluate_at}
        check_use(self.geometry.training_seeds(steps), "train", where="geometry.train_seed_base")
        preflight.check_sampling(policy, sampler, steps)
        preflight.set_passes(policy, optim)
        self.parameters = surface.trainable(policy)
        self.learner = learner(
            policy=policy, parameters=self.parameters, surface=surface, optim=optim, settings=self.settings
        )
        self.optimizer = self.learner.optimizer
        self.kl_rows, self.trust_region = loss.kl_rows, loss.trust_region
        self.anchor = Anchor.of(policy, self.parameters) if loss.kl_rows or loss.kl_beta else None
        self.promise = Promise(policy, self.parameters, surface)
        self.pricing = Pricing(reward, self.geometry, KlCost.of(loss, policy, self.anchor, self.settings.limits))
        self.guards = guards or Guards(TripwiresConfig(), BudgetConfig())
        self.guards.check(kl_rows=loss.kl_rows, ratio_moves=self.settings.ratio_moves)
        self.gates = gates or Gates(GatesConfig())
        self.account = Account(str(policy.device))
        self.account.gpus = self.learner.gpus
        self.save_points = SavePoints(run_dir, self.learner, checkpoint, steps)
        self.pulse = Pulse(run_dir, steps, self.account)
        self.endings = Endings(
            policy, run_dir, self.save_points, self.guards, self.account, self.pulse, lambda event: self.on_event(event)
        )
        self.stage: Stage | DemonstratedStage = Stage(
            policy, sampler, pool, slots, self.geometry, self.pricing, self.guards, self.account, run_dir, self._watch
        )
        if demonstrations is not None:
            check_constants(loss, geometry)
            self.stage = DemonstratedStage(policy, demonstrations, self.settings.limits, self._watch)
        self._started = time.monotonic()

    def run(self) -> Outcome:
        """Train to the end, or to the first safe point after `max_wall_s`.

        Raises:
            StoppedRun: a gate was not passed, an armed wire fired or the budget is spent, all of which is recorded; or
                trainer and sampler differ, or a dry update is not finite, which is not. No weights lie under another
                step's name.
            OutOfMemory: an update does not fit, also in smaller micro-batches; the run can be resumed.
            RolloutError: an episode was lost too often; those that have ended are on disk.
            MachineError: no rendering, or too little room on the disk.
            IntegrityError: the base policy, a checkpoint or a stored row is not what was recorded.
            ConfigError: something that this simulator or reward cannot answer, e.g. `geometry.credit=to_go`.
        """
        self._started = time.monotonic()
        refuse_ended(self.run_dir.path)
        self.account.open()
        self._pass(self.gates.device(self.policy.device))
        self._preflight()
        done = self._restore()
        self.pulse.enter(done, "gates", beat=True)
        self.on_event(events.RunStarted(self.run_dir.path, done, self.steps))
        if done == 0:
            seeds, passed = self.geometry.training_seeds(self.steps), self.run_dir.passed_gates()
            self._pass(self.gates.policy(self.sampler, self.pool, seeds, self.slots, passed, self.beat))
        for step in range(done + 1, self.steps + 1):
            if self._out_of_time():
                return self.endings.end(step - 1, finished=False)
            if step - 1 in self.evaluate_at:
                self._evaluate(step - 1)
            try:
                self._step(step, first=step == done + 1)
            except StoppedWave as stopped:
                raise self.endings.stopped_in_wave(step, stopped) from stopped
            except _OutOfTime:
                self.learner.forget()
                return self.endings.end(step - 1, finished=False)
        if self._out_of_time():
            return self.endings.end(self.steps, finished=False)
        self._evaluate(self.steps)
        return self.endings.end(self.steps, finished=True)

    def _step(self, step: int, *, first: bool) -> None:
        """One step; `first` of this launch."""
        self.pulse.enter(step, "rollout")
        waves = self.stage.step(step, self.save_points.digest)
        wave = waves.first()
        if first and (fresh := waves.fresh(wave)):
            check_first(self.policy, fresh, self.settings, self.stage.temperature)
        if step == 1 and wave.episodes:
            self._pass(self.gates.first_wave(mixed_groups_frac(wave.episodes)))
        terms = self.pricing.terms(wave)
        wave, terms, advantages = waves.refill(wave, terms, self.pricing.advantages(step, wave, terms))
        silent = self.guards.silenced()
        firings, updated = self.guards.before_update(wave, terms, advantages, self.account.spent(wave.episodes)), None
        if (line := self.guards.silenced()) is not None and silent is None:
            self.on_event(events.WireSilenced(step, "knockaway", line))
        if not guards.armed(firings):
            updated = self._update(step, wave, advantages)
            firings += self.guards.after_update(*updated[:2], self.account.spent(wave.episodes))
        self._record(step, wave, terms, advantages, updated, firings)

    # ------------------------------------------------------------------------------------------- the parts of a step
    def _update(self, step: int, wave: Wave, advantages: Advantages) -> tuple[UpdateResult, Drift | None, float]:
        """Update, measure how far that went, and undo it if it was too far.

        Raises:
            OutOfMemory: the device's memory does not hold it; the wave is on disk and nothing is recorded.
        """
        self.pulse.enter(step, "update")
        started = time.perf_counter()
        release(self.sampler)
        try:
            result, drift = self._move(step, wave, advantages)
        except torch.OutOfMemoryError as error:
            self.learner.forget()
            raise self.endings.out_of_memory(f"the update of step {step}") from error
        return result, drift, time.perf_counter() - started

    def _move(self, step: int, wave: Wave, advantages: Advantages) -> tuple[UpdateResult, Drift | None]:
        limit = self.trust_region
        before = self.learner.snapshot() if limit is not None else None
        self.save_points.digest = None
        result = self.learner.update(
            wave.rows,
            self.stage.taught(wave, advantages),
            temperature=self.stage.temperature,
            step=step,
            anchor=self.anchor,
            progress=lambda done, total: self._watch(events.UpdateProgress(step, done, total)),
        )
        self.promise.check_still()
        drift = None
        if self.anchor is not None and result.rows and result.loss_finite:
            sample = sample_rows(wave.rows, self.kl_rows, step)
            limits, temperature = self.settings.limits, self.stage.temperature
            drift = measure(self.policy, self.anchor, sample, temperature=temperature, limits=limits)
        # A distance that is no number is beyond any limit.
        if before is not None and limit is not None and drift is not None and not drift.update_kl <= limit:
            before.put_back()
            result = replace(result, step_skipped=True, rolled_back=True)
        if result.moved:
            self.promise.check_moved(self.account.counters.updates_applied + 1)
        return result, drift

    def _record(
        self,
        step: int,
        wave: Wave,
        terms: list[Terms],
        advantages: Advantages,
        updated: tuple[UpdateResult, Drift | None, float] | None,
        firings: list[Firing],
    ) -> None:
        """Episodes first, then the checkpoint, which carries the step's row, then the row: each is redone or
        recovered.

        A step that was not updated, or whose loss or gradient was not finite, never gives its name to a checkpoint when
        it ends the run: what is kept then is the checkpoint before it.
        """
        update, drift, update_s = updated or (no_update(), None, 0.0)
        stopping = guards.armed(firings)
        if stopping and not update.moved:
            self.endings.keep(step - 1)
        self.account.count(wave, update)
        costs = self.account.costs(wave.wall_s, update_s)
        row = train_row(step, wave, terms, advantages, update, drift, costs, self.geometry.seeds)
        row["tripwires"] = [firing.row() for firing in firings]
        self.run_dir.append(rundir.EPISODES, episode_rows(step, wave, terms, advantages))
        if update.moved and update.finite if stopping else self.save_points.due(step):
            row["save_s"] = self.endings.save(step, row, keep_wave=stopping)
        self.run_dir.append(rundir.TRAIN, [row])
        self.pulse.enter(step, "recorded", beat=True)
        self.endings.recorded()
        self.on_event(events.StepDone(step, self.steps, row))
        self.endings.stop_if(step, firings, rundir.TRAIN)

    def _evaluate(self, step: int) -> None:
        """Evaluate unless this step's evaluation is on record already; the first one has to pass the parity gate."""
        if any(row["step"] == step for row in self.run_dir.rows(rundir.EVAL)):
            return self._pass_parity(step)
        self.endings.stop_if(step, self.guards.over_budget(self.account.spent()), rundir.HEARTBEAT)
        self.pulse.enter(step, "eval", beat=True)
        started = time.perf_counter()
        self.on_event(events.EvalStarted(step))
        result = self.evaluate(step)
        self.save_points.digest = None  # whatever evaluates holds the policy too
        wall_s = time.perf_counter() - started
        self.account.evaluated(result.episodes, wall_s)
        firings = self.guards.after_eval(result.episodes)
        row = {"step": step, **result.row, "wall_s": wall_s, "tripwires": [f.row() for f in firings]}
        self.run_dir.append(rundir.EPISODES, result.episodes)
        self.run_dir.append(rundir.EVAL, [row])  # last: episodes without this row are dropped at the next resume
        self.on_event(events.EvalDone(step, row))
        self.endings.stop_if(step, firings, rundir.EVAL)
        self._pass_parity(step)

    def _pass_parity(self, step: int) -> None:
        """Hold the first evaluation, as it is on record, against another serving path's."""
        if step == 0:
            row = next(row for row in self.run_dir.rows(rundir.EVAL) if row["step"] == 0)
            played = [e for e in self.run_dir.rows(rundir.EPISODES) if e["phase"] == "eval" and e["step"] == 0]
            self._pass(self.gates.first_evaluation(Evaluation(row, tuple(played)), self.run_dir.passed_gates()))

    # --------------------------------------------------------------------------------------------- how a launch begins
    def _preflight(self) -> None:
        started = time.perf_counter()
        observation = preflight.render_canary(self.pool, self.geometry.train_seed_base)
        rows = self.stage.stored_rows(self.max_replans) * self.save_points.waves
        needed = preflight.check_disk(
            self.run_dir.path, self.policy, self.parameters, observation,
            rows=rows, checkpoints=self.save_points.keep + 1,
        )  # fmt: skip
        try:
            tokens = self.learner.dry_update(self.stage.temperature, observation)
        except torch.OutOfMemoryError as error:
            self.learner.forget()
            raise self.endings.out_of_memory("an update on the longest possible rows") from error
        measured = {"longest_row_tokens": tokens, "disk_needed_gib": needed / GIB}
        self.run_dir.record_gate(GateResult("preflight", True, measured, {}).row())
        self.on_event(events.PreflightDone(tokens, needed / GIB, time.perf_counter() - started))

    def _pass(self, results: Iterable[GateResult]) -> None:
        """Record what gates measure, one after the other, up to the first that is not passed."""
        for result in results:
            self.run_dir.record_gate(result.row())
            self.on_event(events.GateJudged(result.row()))
            if not result.passed:
                raise result.error(str(self.run_dir.path / rundir.MANIFEST))

    def _restore(self) -> int:
        """Go back to the newest checkpoint; returns the updates it holds."""
        base_digest = self.policy.digest()
        self.run_dir.check_base(base_digest)
        loaded = self.save_points.restore()
        if loaded:
            check_recorded(self.policy, loaded)
        held_out = [row for row in self.run_dir.rows(rundir.EPISODES) if row["phase"] == "eval"]
        self.guards.restore_first(held_out)
        counters = Counters(**loaded.state["counters"]) if loaded else Counters()
        self.account.restore(counters, held_out, self.run_dir.last_heartbeat().get("device_s", 0.0))
        if loaded:
            self.guards.restore(loaded.state["guards"])
        self.endings.begin(base_digest)
        return loaded.step if loaded else 0

    # ---------------------------------------------------------------------------------------- while it works: its time
    def _out_of_time(self) -> bool:
        return self.max_wall_s is not None and time.monotonic() - self._started >= self.max_wall_s

    def beat(self, event: Event) -> None:
        """Progress of whatever is under way, an evaluation too: into the heartbeat, then to `on_event`."""
        self.pulse.beat(event)
        self.on_event(event)

    def _watch(self, event: Event) -> None:
        """The same of a wave or an update, which the wall limit may end."""
        self.beat(event)
        if isinstance(event, PredictRound | events.RowsScored | events.UpdateProgress):
            later = isinstance(event, events.UpdateProgress)  # passes after the first have moved weights already
            if event.done < event.total // (self.settings.epochs if later else 1) and self._out_of_time():
                raise _OutOfTime
