"""MyTH's code (github.com/EPFLiGHT/MyTH, MIT) made to run here: its network over our small backbone, its federation on
our batches, its programs on our pictures. It is given as a path to a checkout; nothing of it is in this repository."""

from __future__ import annotations

import copy
import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from vitrail.core.tensors import Params
from vitrail.engine.local import Engine
from vitrail.nets.prototype_network import ProtoNet

SEED = "seed = 12"  # as their programs write it
MEAN, SPREAD = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))  # ImageNet's
PICTURES: dict[str, tuple[Tensor, Tensor]] = {}  # such as client_0/train: pictures 0 to 1 of three channels, classes


class Backbone(nn.Module):
    """Ours, as their network takes one: it goes by the text, and averages `features.features`."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.features = layers

    def forward(self, x: Tensor) -> Any:
        return self.features(x)

    def __repr__(self) -> str:
        return "RES: not one, but its channels are counted in the same way"

    def conv_info(self) -> tuple[list[int], ...]:
        found = [m for m in self.features.modules() if isinstance(m, nn.Conv2d)]
        return [m.kernel_size[0] for m in found], [m.stride[0] for m in found], [int(m.padding[0]) for m in found]


def found_at(checkout: Path) -> None:
    """From now on it can be imported. What it imports and is not here: drawing does nothing, and a folder of pictures
    is one of PICTURES."""
    sys.path.insert(0, str(checkout.resolve()))

    def module(name: str, **holds: Any) -> types.ModuleType:
        made = sys.modules[name] = types.ModuleType(name)
        made.__dict__.update(holds)
        return made

    def resize(a: Any, dsize: Any, interpolation: Any) -> Any:
        return np.asarray(Image.fromarray(a.astype(np.float32)).resize(dsize, Image.Resampling.BICUBIC))

    plain = {"applyColorMap": lambda a, _: np.zeros((*a.shape, 3)), "COLORMAP_JET": 0, "INTER_CUBIC": 0}
    module("cv2", resize=resize, **plain)
    module("matplotlib", pyplot=module("matplotlib.pyplot", imsave=lambda *_, **__: None))
    for name in ("torcheval", "torcheval.metrics"):
        module(name)
    module("torcheval.metrics.functional", multiclass_f1_score=None, multiclass_accuracy=None)

    def folder(path: str, normalised: bool) -> TensorDataset:
        x, y = PICTURES[path.strip("/")]
        return TensorDataset((x - MEAN) / SPREAD if normalised else x, y)

    kept = {"Compose": lambda steps: "normalise" in steps, "Normalize": lambda **_: "normalise"}
    transforms = module("torchvision.transforms", Resize=lambda **_: "", ToTensor=lambda: "", **kept)
    datasets = module("torchvision.datasets", ImageFolder=folder)
    module("torchvision", transforms=transforms, datasets=datasets)


def network(net: ProtoNet, params: Params) -> Any:
    """Theirs, with our parameters."""
    kind = importlib.import_module("Protopnet")
    kind.base_architecture_to_features["densenet121"] = lambda pretrained: Backbone(net.make().features)
    shape = (*params[net.NAME].shape, 1, 1)
    return loaded(kind.ProtoPNet.construct_PPNet("densenet121", True, net.shape[1], shape, net.outputs), params)


def learned(model: nn.Module) -> dict[str, nn.Parameter]:
    """Its parameters under our names."""
    ours = {"prototype_vectors": "prototypes", "last_layer.weight": "last.weight"}
    words = (("features.features", "features"), ("add_on_layers", "add_on"))
    for old, new in words:
        ours |= {n: n.replace(old, new) for n, _ in model.named_parameters() if n.startswith(old)}
    return {ours[n]: p for n, p in model.named_parameters() if n != "ones"}


def loaded(model: Any, params: Params) -> Any:
    for name, p in learned(model).items():
        p.data.copy_(params[name].view_as(p))
    return model


def params_of(model: nn.Module) -> Params:
    told = {k: p.detach().clone() for k, p in learned(model).items()}
    return told | {"prototypes": told["prototypes"].flatten(1)}


class Epochs:
    """Our batches of one site, as a data loader of theirs: every pass over it is the next epoch."""

    def __init__(self, engine: Engine, i: int) -> None:
        self.sites, drawer, many = engine.sites, engine.sampler, engine.sampler.per_epoch[i]
        self.epochs: list[list[Tensor]] = []
        for stage, turn in [(0, 0), *((1, r) for r in range(engine.training.rounds))]:
            drawer.set(stage, turn)
            draw = drawer.draw()
            steps = [rows[real[:, 0] > 0] for rows, real in zip(draw.rows[:, i], draw.real[:, i], strict=True)]
            self.epochs += [steps[e * many : (e + 1) * many] for e in range(engine.training.epochs)]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for at in self.epochs.pop(0):
            yield self.sites.x[at], self.sites.y[at].argmax(1)


def in_order(engine: Engine, i: int, batch: int) -> Any:
    """A site's rows in their order."""
    sites, at = engine.sites, slice(engine.sites.starts[i], engine.sites.starts[i] + engine.sites.sizes[i])
    return DataLoader(TensorDataset(sites.x[at], sites.y[at].argmax(1)), batch)


def federation(engine: Engine, net: ProtoNet, at: list[int], all_: bool, decay: float | None, ends: bool) -> list[Any]:
    """The models of the sites at these places after the warm-up and after each round, by their own run_Fed_PPNet.
    `decay`: of all weights, or as they have it. `ends`: with push and last layer in every round, as they have it."""
    fed, given = importlib.import_module("fed_ppnet"), importlib.import_module("parameters")
    plain, start, seen = [in_order(engine, i, engine.training.batch) for i in at], engine.task.start, list[Any]()

    class Watched(fed.Fed_PPNet):
        def model_dict_PPNet(self, in_model_dict: Any = None) -> Any:  # noqa: N802
            made = super().model_dict_PPNet()
            for model in made[0].values():
                loaded(model, start)
            for group in (g for rules in made[1:3] for rule in rules.values() for g in rule.param_groups):
                group["weight_decay"] = group["weight_decay"] if decay is None else decay
            return made

        def client_train_joint(self, models: Any, rules: Any, round: int) -> None:
            if round == 1:
                seen.append([params_of(m) for m in models.values()])
            super().client_train_joint(models, rules, round)

        def clients_push_and_save(self, models: Any, round: int, aggregate_conv: bool = False) -> None:
            seen.append([params_of(m) for m in models.values()])
            if ends:
                super().clients_push_and_save(models, round, aggregate_conv)

        def client_train_last(self, models: Any, rules: Any, round: int) -> None:
            if ends:
                batches, self.train_loaders = self.train_loaders, plain
                super().client_train_last(models, rules, round)
                self.train_loaders = batches

    first, how = network(net, start), engine.training
    rates = given.joint_optimizer_lrs, given.joint_lr_step_size, given.warm_optimizer_lrs, given.last_layer_optimizer_lr
    counts = first.prot_shape, how.epochs, how.epochs, 0, how.rounds + 1
    batches = [Epochs(engine, i) for i in at]
    with patch.object(fed, "preprocess_input_function", None):
        names = (".", "a", "b", "c", ".")
        Watched(first, len(at), batches, plain, plain, *counts, *names, *rates).run_Fed_PPNet(aggregate_conv=all_)
    return seen


def program(
    checkout: Path, script: str, words: str, seed: int, backbone: nn.Module, rate: float, batch: int
) -> dict[str, Any]:
    """All that one of their programs holds in the end. Every model starts from this backbone, as from a pretrained one;
    `rate`: of its convolutions."""
    text = (checkout / script).read_text(encoding="utf-8")
    assert SEED in text
    kind, given = importlib.import_module("Protopnet"), importlib.import_module("parameters")
    kind.base_architecture_to_features["densenet121"] = lambda pretrained: Backbone(copy.deepcopy(backbone))
    given.joint_optimizer_lrs["features"], given.train_batch_size = rate, batch
    held = {"__name__": "__main__"}
    with (
        patch.object(torch.utils.data, "DataLoader", lambda data, num_workers, **more: DataLoader(data, **more)),
        patch.object(sys, "argv", [script, *words.split()]),
    ):
        exec(compile(text.replace(SEED, f"seed = {seed}"), script, "exec"), held)
    return held
