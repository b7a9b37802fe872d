"""Write and load one party's checkpoints.  A resumed run reaches the same weights as an uninterrupted one.

A checkpoint is one safetensors file.  It is written under a temporary name and then renamed, so that a killed process
leaves the complete old file or the complete new file.  Numbers and histories are JSON in the file's metadata.  Nothing
is pickled.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from anyparty.core.storage import MAX_WEIGHTS_BYTES, PART, check_format, open_regular, read_bytes, writing
from anyparty.errors import Diverged, ModelError, remark, some

if TYPE_CHECKING:
    from anyparty.methods.method import State

KEEP = 2  # how many of the last checkpoints are kept, and how many of the last ones of epochs with all parties
REMEMBERS = {
    torch.optim.SGD: {"momentum_buffer"},
    torch.optim.Adam: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
}


@dataclass
class RunPosition:
    """The progress of a run at one party.

    Attributes:
        stage: the next stage, counted from 0.
        epoch: the number of finished epochs of that stage.
        best: the best value of the selection metric in this stage, or in the stages that it continues; ``None`` before
            the first value.
        best_epoch: the epoch with the best value, counted from 1 in its stage; 0 before the first value.
        best_smooth: the smooth score of the best epoch, which breaks ties between epochs (see ``epoch_end``).
        best_stage: the name of the best epoch's stage.
        lowest: the lowest smooth score of all finished epochs.
        moved: whether the metric has changed since its first value.
        waited: the number of epochs of this stage since the last improvement.
        history: one record per epoch, at the active party.
        averaged: the number of epochs in the mean of the weights, with ``keep = "average"``.

    """

    stage: int = 0
    epoch: int = 0
    best: float | None = None
    best_epoch: int = 0
    best_stage: str = ""
    best_smooth: float = 0.0
    lowest: float = 0.0
    moved: bool = False
    waited: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    averaged: int = 0


FORMAT = 2  # ``best_epoch`` is counted from 1; checkpoints without a format number count it from 0
PROGRESS = TypeAdapter(RunPosition)
# Values of the fields that are missing in checkpoints of the first versions.
SINCE = {"best_smooth": -math.inf, "lowest": -math.inf, "moved": True, "waited": 0}


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return contiguous copies of a module's parameters and buffers, on the CPU."""
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in module.state_dict().items()}


def write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    """Write a safetensors file atomically, with ``metadata`` as JSON in its metadata.

    Raises:
        StorageError: the file cannot be written.
    """
    with writing(path) as beside:
        save_file(tensors, beside, metadata={"anyparty": json.dumps(metadata)})


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the JSON values of a file that ``write`` wrote.

    Raises:
        ModelError: the file does not exist, is incomplete or was not written by anyparty.
    """
    try:
        open_regular(path, MAX_WEIGHTS_BYTES).close()
        with safe_open(path, framework="pt") as file:
            metadata = dict(json.loads((file.metadata() or {})["anyparty"]))
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except (SafetensorError, KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        raise ModelError(
            f"{path}: this is not a complete file of anyparty ({error}); train again, or copy it again"
        ) from None


def load_module(module: nn.Module, tensors: dict[str, Tensor], source: Path | str, name: str = "") -> None:
    """Load tensors into a module whose parameters have the same shapes; ``name`` denotes the module in errors.

    Raises:
        ModelError: the names or shapes of the tensors differ from the names or shapes in the module.
    """
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        problems = _misfits(module.state_dict(), tensors, f"{name}/" if name else "") or [" ".join(str(error).split())]
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise ModelError(f"{source}: its weights do not fit the networks that its settings describe: "
                         f"{problems[0]}{more}; "
                         "give the method and the encoder factories of the training") from None  # fmt: skip


def _misfits(wants: dict[str, Any], kept: dict[str, Tensor], prefix: str) -> list[str]:
    """Return a text for each parameter that was not saved, has another saved shape, or is not in the network."""
    shapes = {
        name: (_shape(kept[name]), _shape(want))
        for name, want in wants.items()
        if isinstance(want, Tensor) and name in kept
    }
    return [
        *(f"parameter {prefix}{name} was saved with shape {was}, but has shape {now} here"
          for name, (was, now) in shapes.items() if was != now),
        *(f"parameter {prefix}{name} was not saved" for name in wants if name not in kept),
        *(f"parameter {prefix}{name} was saved, but the network does "
          "not have it" for name in kept if name not in wants),
    ]  # fmt: skip


def _shape(tensor: Tensor) -> str:
    return " × ".join(map(str, tensor.shape)) or "of one number"


@dataclass
class Checkpoints:
    """A folder with a party's last two checkpoints, named by stage and epoch.

    While a party is away, the folder also keeps the last two checkpoints of epochs in which all parties took part.  The
    party that is away has at least the earlier one of these two, because it saved that one before it took part in a
    later epoch.  A resumed run can therefore continue from an epoch of which all parties have a checkpoint.

    Attributes:
        folder: the folder.
        whole: whether all parties took part in the epoch of a checkpoint, by the name of its file.
    """

    folder: Path
    whole: dict[str, bool] = field(default_factory=dict)

    def save(
        self, state: State, progress: RunPosition, best: dict[str, dict[str, Tensor]], *, whole: bool = True
    ) -> None:
        """Write the networks, the optimizers and the progress; delete checkpoints that are no longer needed.

        ``whole`` is true if all parties took part in the last epoch, or if the parties train by themselves.

        Raises:
            Diverged: a weight is NaN or infinite; earlier checkpoints are kept.
        """
        tensors: dict[str, Tensor] = {}
        for name, module in state.modules.items():
            tensors |= {f"module/{name}/{key}": tensor for key, tensor in tensors_of(module).items()}
        if not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
            raise Diverged(f"party {state.seat.me!r}: its weights are no longer numbers after epoch {progress.epoch}: "
                           f"lower its learning rate, or look for extreme values in its columns")  # fmt: skip
        for name, kept in best.items():
            tensors |= {f"best/{name}/{key}": tensor for key, tensor in kept.items()}
        tensors |= {f"kept/{name}": tensor.detach().cpu().contiguous() for name, tensor in state.kept.items()}
        for name, optimizer in state.optimizers.items():
            for place, values in optimizer.state_dict()["state"].items():
                held = {key: value for key, value in values.items() if value is not None}
                tensors |= {f"optimizer/{name}/{place}/{key}": value.clone() for key, value in held.items()}
        path = self.folder / f"{progress.stage:02d}-{progress.epoch:06d}.safetensors"
        write(path, tensors, {"format": FORMAT, **vars(progress), **({} if whole else {"whole": False})})
        self.whole[path.name] = whole
        files = self.files()
        used = {*files[-KEEP:], *[file for file in files if self._is_whole(file)][-KEEP:]}
        for old in (file for file in files if file not in used):
            old.unlink()

    def _is_whole(self, path: Path) -> bool:
        if path.name not in self.whole:  # an earlier process wrote the file
            try:
                self.whole[path.name] = bool(read(path)[1].get("whole", True))
            except ModelError:
                self.whole[path.name] = False
        return self.whole[path.name]

    def begin(self, run: str, *, resume: bool) -> list[tuple[int, int]]:
        """Return the (stage, epoch) of each checkpoint from which the run can continue.

        Checkpoints of another run are deleted first, unless ``resume`` is true.  Checkpoints of the run named ``run``
        are kept, because this party may be rejoining that run.
        """
        for left in self.folder.glob(f"*{PART}"):  # incomplete files of killed processes
            if re.fullmatch(r"\d+-\d+\.safetensors\.[0-9a-f]+", left.stem):
                left.unlink()
        named = self.folder / "run.txt"
        same = bool(run) and named.exists() and read_bytes(named).decode(errors="replace") == run
        if not resume and not same:
            for old in self.files():
                old.unlink()
        with writing(named) as beside:
            beside.write_text(run, encoding="utf-8")
        return self._complete()

    def _complete(self) -> list[tuple[int, int]]:
        """Return the (stage, epoch) of each complete checkpoint, or of every checkpoint if none is complete.

        After a power failure, a file may exist without its contents.  If no checkpoint is complete, loading one reports
        the damage.
        """
        files = dict(zip(self.stage_epochs(), self.files(), strict=True))
        complete = [stage_epoch for stage_epoch, path in files.items() if _opens(path)]
        if complete and len(complete) < len(files):
            cut = some(path.name for stage_epoch, path in files.items() if stage_epoch not in complete)
            remark(
                f"{self.folder}: truncated, for example by a power failure: {cut}; resuming from "
                f"{files[complete[-1]].name}"
            )
        return complete or list(files)

    def files(self) -> list[Path]:
        """Return the checkpoint files, oldest first."""
        return sorted(path for path in self.folder.glob("*.safetensors") if re.fullmatch(r"\d+-\d+", path.stem))

    def last_good(self) -> str:
        """Return a text on the last checkpoint of a failed run, for the run's error message."""
        stage_epochs = self.stage_epochs()
        if not stage_epochs:
            return f"no weights were saved yet in {self.folder}: lower train.checkpoint_every to save them sooner"
        return f"the weights after epoch {stage_epochs[-1][1]} are saved in {self.folder}"

    def stage_epochs(self) -> list[tuple[int, int]]:
        """Return the (stage, epoch) of every checkpoint, oldest first."""
        return [(int(stage), int(epoch)) for stage, _, epoch in (file.stem.partition("-") for file in self.files())]

    def load(self, state: State, stage_epoch: tuple[int, int]) -> tuple[RunPosition, dict[str, dict[str, Tensor]]]:
        """Restore networks and optimizers from the checkpoint at ``stage_epoch``; return its progress and best weights.

        ``stage_epoch`` is a (stage, epoch).  Later checkpoints are deleted, because they would be mistaken for
        checkpoints of the resumed run.

        Raises:
            ModelError: the checkpoint is incomplete, or does not fit the networks or optimizers.
        """
        path = self.folder / f"{stage_epoch[0]:02d}-{stage_epoch[1]:06d}.safetensors"
        tensors, metadata = read(path)
        check_format(path, metadata.get("format", 1), range(1, FORMAT + 1), "a checkpoint")
        try:
            progress = _position(metadata)
        except ValidationError:
            progress = None
        if progress is None:
            raise ModelError(f"{path}: its description of the run is damaged; resume from another copy, or train again")
        for name, module in state.modules.items():
            load_module(module, _under(tensors, f"module/{name}/"), path, name)
        for name, optimizer in state.optimizers.items():
            _load_optimizer(optimizer, _under(tensors, f"optimizer/{name}/"), path)
        state.kept = {name: kept.to(state.seat.device) for name, kept in _under(tensors, "kept/").items()}
        best = {name: _under(tensors, f"best/{name}/") for name in state.modules}
        for later in [each for each in self.files() if each.name > path.name]:
            later.unlink()
        return progress, {name: kept for name, kept in best.items() if kept}


def _position(metadata: dict[str, Any]) -> RunPosition | None:
    """Return the progress that a checkpoint describes; ``None`` if a field of the description is missing.

    Checkpoints of earlier versions are converted: they count the best epoch from 0, and the oldest ones do not have the
    fields in ``SINCE``.

    Raises:
        ValidationError: a field has a wrong type.
    """
    written = metadata.get("format")
    metadata = {key: value for key, value in metadata.items() if key not in {"format", "whole"}}
    if written is None and isinstance(metadata.get("best_epoch"), int):
        metadata["best_epoch"] += 1
    if metadata.keys() == vars(RunPosition()).keys() - SINCE.keys():
        waited = int(metadata["epoch"]) - int(metadata["best_epoch"])
        metadata = metadata | SINCE | {"waited": max(0, waited)}
    return PROGRESS.validate_python(metadata) if vars(RunPosition()).keys() == metadata.keys() else None


def _opens(path: Path) -> bool:
    """Return True if a file has the length that its header declares."""
    try:
        open_regular(path, MAX_WEIGHTS_BYTES).close()
        with safe_open(path, framework="pt"):
            return True
    except (SafetensorError, OSError):
        return False


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], source: Path) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    held: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        place, _, key = name.partition("/")
        fits = place.isdecimal() and int(place) < len(parameters) and tensor.shape in ((), parameters[int(place)].shape)
        if not fits:
            raise ModelError(f"{source}: its optimizer's {name} does not fit the networks of this run")
        held.setdefault(int(place), {})[key] = tensor
    wants = REMEMBERS.get(type(optimizer))
    if wants is not None and any(kept.keys() != wants for kept in held.values()):
        raise ModelError(f"{source}: it was saved with another optimizer than {type(optimizer).__name__}")
    optimizer.load_state_dict({"state": held, "param_groups": optimizer.state_dict()["param_groups"]})
