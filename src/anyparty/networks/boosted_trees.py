"""Boosted trees of LightGBM, fitted once, saved as LightGBM's text without pickle, and used like a network.

A saved text is checked before LightGBM parses it: its size, its header, and every number of every tree. The parser is
written in C++ and trusts its input.

Notation  n rows, F columns, R outputs; M members, whose mean is the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anyparty.errors import ConfigError, ModelError
from anyparty.networks.modules import any_length

if TYPE_CHECKING:
    from lightgbm import Booster

Objective = Literal["binary", "multiclass", "regression"]
MOST_BYTES = 256 * 2**20  # of one text
MOST_LEAVES = 4096
FEW = 4  # half of two columns would be one, and a tree could not combine them
HEADER = {"version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "objective",
          "feature_names", "feature_infos", "tree_sizes"}  # fmt: skip
END = "end of trees\n"
# The numbers of a tree with L leaves: how many there are, by key; all other lines have one number.
BY_SPLIT = {"split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child", "internal_value",
            "internal_weight", "internal_count"}  # fmt: skip
BY_LEAF = {"leaf_value", "leaf_weight", "leaf_count"}
KEYS = {"num_leaves", "num_cat", "is_linear", "shrinkage"} | BY_SPLIT | BY_LEAF
MISSING_KINDS = 0b1110  # bits of decision_type for missing values; bit 0 would be a categorical split


@dataclass(frozen=True, kw_only=True)
class TreeSettings:
    """Settings of LightGBM.

    Attributes:
        trees: the number of trees, for each class if there are more than two.
        rate: the learning rate.
        leaves: the largest number of leaves of a tree.
        least: the smallest number of training rows in a leaf.
        columns: the share of the columns, drawn at random, that a tree reads; it reads all of at most ``FEW`` columns.

    """

    trees: int
    rate: float
    leaves: int
    least: int
    columns: float


def lightgbm() -> Any:
    """Import LightGBM, which takes a while and needs the system's OpenMP library.

    Raises:
        ConfigError: it is not installed, or the system lacks the library.
    """
    try:
        import lightgbm as module  # noqa: PLC0415
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"boosted trees need LightGBM, which cannot be loaded here ({error}): pip install lightgbm; if libgomp is "
            "missing, apt install libgomp1 (on macOS, brew install libomp)"
        ) from None
    return module


def fit_trees(
    x: Tensor, y: Tensor, settings: TreeSettings, seed: int, *,
    objective: Objective, classes: int = 1, weight: Tensor | None = None,
) -> Booster:  # fmt: skip
    """Fit trees to x [n, F], in which NaN is a missing cell, and labels y [n] with weights [n]; n is at least 1."""
    return _Fitting(x, settings, seed, objective, classes).fit(y, weight)


def cross_fit(
    x: Tensor, y: Tensor, folds: Tensor, settings: TreeSettings, seed: int, *,
    objective: Objective = "regression", classes: int = 1, weight: Tensor | None = None,
) -> tuple[list[list[Booster]], Tensor]:  # fmt: skip
    """Fit trees for each fold, to the rows of all other folds.

    In a regression, the mean of the targets of these rows is subtracted first. With it, the outputs of a fold would be
    high if its own targets are low, and later trees would learn from that.

    Args:
        x: [n, F], the rows; NaN is a missing cell.
        y: [n, R], for each of R outputs a target; each output has trees of its own.
        folds: [n], the fold of each row.
        settings: settings of LightGBM.
        seed: seed of the trees.
        objective: LightGBM's objective.
        classes: the number of numbers that the trees of one output return.
        weight: [n, R], weights of the rows; by default 1.

    Returns:
        For each fold, the trees of each output; and the numbers of each row from trees that did not see it, [n, R *
        classes].

    """
    fitting, members = _Fitting(x, settings, seed, objective, classes, centred=objective == "regression"), []
    held = torch.zeros(len(x), y.shape[1] * classes)
    numbers = torch.unique(folds)
    for fold in numbers:
        out = folds == fold
        used = ~out if len(numbers) > 1 else out  # with a single fold, rows are seen by their own trees
        member = [fitting.fit(y[:, r], None if weight is None else weight[:, r], used) for r in range(y.shape[1])]
        held[out.cpu()] = _predicted(member, _numpy(x[out]))
        members.append(member)
    return members, held


class _Fitting:
    """Rows whose columns LightGBM has binned once, for several fits to subsets of them."""

    def __init__(
        self, x: Tensor, settings: TreeSettings, seed: int, objective: Objective, classes: int, *, centred: bool = False
    ) -> None:
        self.parameters: dict[str, Any] = {
            "objective": objective, "learning_rate": settings.rate, "num_leaves": settings.leaves,
            "min_data_in_leaf": settings.least, "seed": seed % 2**31,
            "feature_fraction": 1.0 if x.shape[1] <= FEW else settings.columns,
            "num_threads": torch.get_num_threads(), "deterministic": True, "force_row_wise": True, "verbosity": -1,
            **({"num_class": classes} if objective == "multiclass" else {}),
            **({"boost_from_average": False} if centred else {}),
        }  # fmt: skip
        self.centred = centred
        self.trees, self.numbers = settings.trees, _numpy(x)
        self.rows: Any = None

    def fit(self, y: Tensor, weight: Tensor | None, used: Tensor | None = None) -> Booster:
        module, parameters = lightgbm(), self.parameters
        if self.centred:
            share = torch.ones_like(y) if weight is None else weight
            share = share if used is None else torch.where(used, share, 0.0)
            y = y - (share * y).sum() / share.sum()
        label, weights = _numpy(y.double()), None if weight is None else _numpy(weight.double())
        if self.rows is None:
            self.rows = module.Dataset(self.numbers, label, params=parameters, free_raw_data=False)
        rows = self.rows.set_label(label).set_weight(weights)
        if used is not None and not bool(used.all()):
            rows = rows.construct().subset(np.flatnonzero(_numpy(used)), params=parameters)
        made: Booster = module.train(parameters, rows, self.trees)
        return made


def _numpy(x: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = x.detach().cpu().numpy()
    return found


def _predicted(member: Sequence[Booster], x: NDArray[Any]) -> Tensor:
    """Return the outputs of a member's boosters side by side, [n, R]."""
    found = [np.asarray(booster.predict(x, raw_score=True)).reshape(len(x), -1) for booster in member]
    return torch.from_numpy(np.concatenate(found, axis=1)).float()


class BoostedTrees(nn.Module):
    """Fitted trees: x [n, F] -> [n, R], the mean over M members.

    A member has one booster for each output, or one for all of them. Until trees are set, the outputs are zeros.

    Args:
        outputs: R.

    """

    text: Tensor
    sizes: Tensor
    shape: Tensor

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.register_buffer("text", torch.zeros(0, dtype=torch.uint8))  # all texts, one after the other
        self.register_buffer("sizes", torch.zeros(0, 0, dtype=torch.int64))  # [M, boosters of a member], in bytes
        self.register_buffer("shape", torch.tensor([0, outputs]))  # F and R
        any_length(self, "text", "sizes")
        self.register_load_state_dict_post_hook(lambda module, _: module.parse())  # type: ignore[no-untyped-call]
        self._members: list[list[Booster]] = []

    @property
    def fitted(self) -> bool:
        """True if trees were set."""
        return bool(self.sizes.numel())

    def set_trees(self, members: Sequence[Sequence[Booster]]) -> None:
        """Store the trees of M members as text."""
        texts = [[_cut(booster.model_to_string()).encode() for booster in member] for member in members]
        device, first = self.text.device, members[0]
        joined = bytearray(b"".join(text for member in texts for text in member))
        self.text = torch.frombuffer(joined, dtype=torch.uint8).to(device)
        self.sizes = torch.tensor([[len(text) for text in member] for member in texts], device=device)
        outputs = sum(booster.num_model_per_iteration() for booster in first)
        self.shape = torch.tensor([first[0].num_feature(), outputs], device=device)
        self.parse()

    def parse(self) -> None:
        """Check the stored texts, and let LightGBM parse them.

        Raises:
            ModelError: a text is not one that LightGBM wrote for these columns and outputs.
        """
        self._members = []
        if not self.fitted:
            return
        (inputs, outputs), sizes = self.shape.tolist(), self.sizes.tolist()
        flat = [size for member in sizes for size in member]
        if self.sizes.ndim != 2 or min(flat) < 1 or max(flat) > MOST_BYTES or sum(flat) != len(self.text):
            raise ModelError("boosted trees: the sizes of their texts do not fit the stored text")
        text, at = _numpy(self.text).tobytes(), 0
        for member in sizes:
            boosters = []
            for size in member:
                part = text[at : at + size].decode("ascii", errors="replace")
                check_text(part, inputs, outputs // len(member))
                boosters.append(lightgbm().Booster(model_str=part))
                at += size
            self._members.append(boosters)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of rows x [n, F], in which NaN is a missing cell."""
        outputs = int(self.shape[1])
        if not self._members or not len(x):
            return torch.zeros(len(x), outputs, device=x.device)
        numbers = _numpy(x)
        return torch.stack([_predicted(member, numbers) for member in self._members]).mean(dim=0).to(x.device)


def _cut(text: str) -> str:
    """Leave out what prediction does not need: importances and the parameters of training."""
    return text[: text.index(END) + len(END)]


def check_text(text: str, inputs: int, outputs: int) -> None:
    """Check that a text is a model that LightGBM wrote, with F = ``inputs`` columns and ``outputs`` trees a step.

    Raises:
        ModelError: it is not.
    """
    head, _, rest = text.partition("\n\n")
    lines = [line.partition("=") for line in head.removeprefix("tree\n").split("\n")]
    found = {key: value for key, _, value in lines}
    objective = found.get("objective", "").partition(" ")[0]
    wanted = {"version": "v4", "num_class": f"{outputs}", "num_tree_per_iteration": f"{outputs}", "label_index": "0",
              "max_feature_idx": f"{inputs - 1}",
              "feature_names": " ".join(f"Column_{column}" for column in range(inputs))}  # fmt: skip
    if (
        not text.startswith("tree\n") or found.keys() != HEADER or len(lines) != len(HEADER)
        or objective not in {"binary", "multiclass", "regression"}
        or len(found["feature_infos"].split(" ")) != inputs or not text.endswith(END)
    ):  # fmt: skip
        raise ModelError("boosted trees: expected the text of a LightGBM model, got another header or end")
    for key, value in wanted.items():
        if found[key] != value:
            raise ModelError(f"boosted trees: expected {key}={value[:40]}, got {found[key][:40]!r}")
    sizes = [int(size) if size.isdecimal() else -1 for size in found["tree_sizes"].split()]
    body = rest.removesuffix(END)
    if min(sizes, default=-1) < 1 or len(sizes) % outputs or sum(sizes) != len(body):
        raise ModelError("boosted trees: tree_sizes does not fit the trees")
    at = 0
    for number, size in enumerate(sizes):
        _check_tree(body[at : at + size], number, inputs)
        at += size


def _check_tree(text: str, number: int, inputs: int) -> None:
    """Check the numbers of a tree, and that each node but the first is the child of exactly one earlier node."""
    try:
        values = dict(_numbers(text, number))
        leaves = int(values["num_leaves"][0])
        good = 1 <= leaves <= MOST_LEAVES and values.keys() == KEYS and _has_lengths(values, leaves)
        good = good and values["num_cat"][0] == 0 and values["is_linear"][0] == 0 and 0 < values["shrinkage"][0] <= 1
        if good and leaves > 1:
            features, kinds = values["split_feature"], values["decision_type"].astype(int)
            good = bool(((features >= 0) & (features < inputs)).all() and not (kinds & ~MISSING_KINDS).any())
            left, right = values["left_child"], values["right_child"]
            below = np.sort(np.concatenate([left, right]))
            later = np.concatenate([left, right]) > np.tile(np.arange(leaves - 1), 2)
            good = good and np.array_equal(below, [*range(-leaves, 0), *range(1, leaves - 1)])
            good = good and bool((later | (np.concatenate([left, right]) < 0)).all())
    except (ValueError, KeyError, IndexError):
        good = False
    if not good:
        raise ModelError(f"boosted trees: tree {number} is not a tree that LightGBM wrote for {inputs} columns")


def _numbers(text: str, number: int) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield each key of a tree with its numbers, which are finite; only thresholds beside missing cells are not."""
    title, *lines = text.rstrip("\n").split("\n")
    if title != f"Tree={number}" or len(lines) != len(KEYS):
        raise ValueError(title)
    for line in lines:
        key, _, value = line.partition("=")
        found = np.array([float(each) for each in value.split(" ") if each])
        if np.isnan(found).any() or (key != "threshold" and np.isinf(found).any()):
            raise ValueError(key)
        yield key, found


def _has_lengths(values: Mapping[str, NDArray[np.float64]], leaves: int) -> bool:
    """Return whether each key of a tree has its number of numbers; a tree of one leaf leaves out most of them."""
    few = dict.fromkeys(BY_SPLIT | BY_LEAF, 0) | {"leaf_value": 1, "leaf_count": 1}
    many = dict.fromkeys(BY_SPLIT, leaves - 1) | dict.fromkeys(BY_LEAF, leaves)
    lengths = dict.fromkeys(KEYS, 1) | (few if leaves == 1 else many)
    return all(len(found) == lengths[key] for key, found in values.items())


class Bins(nn.Module):
    """The bounds of the bins of F columns: x [n, F] -> codes [n, F] uint8, with ``EMPTY`` for NaN."""

    EMPTY = 255
    bounds: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bounds", torch.zeros(0, 0))  # [F, at most 254]; a shorter row ends in the largest float
        any_length(self, "bounds")

    def set_bounds(self, columns: Sequence[NDArray[np.float64]]) -> None:
        """Store the bounds of each column, in ascending order."""
        most = max(map(len, columns))
        last = float(np.finfo(np.float32).max)
        padded = [np.pad(bounds, (0, most - len(bounds)), constant_values=last) for bounds in columns]
        self.bounds = torch.tensor(np.array(padded), dtype=torch.float32, device=self.bounds.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return the bin of each cell: the number of bounds that are not above it."""
        codes = torch.searchsorted(self.bounds, x.T.contiguous(), right=True).T
        return torch.where(x.isnan(), self.EMPTY, codes).to(torch.uint8)
