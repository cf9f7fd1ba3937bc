"""`--compile`: one graph of training, whatever the method, for all steps of a run."""

import pytest
import torch
from data_folders import write_cub
from torch._dynamo.testing import CompileCounter

from scm_fast.models.methods import method_names
from scm_fast.training import Trainer, make_config

TINY = {
    "backbone": "vit_tiny_patch16_224",
    "backbone_options": {"patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2},
    "pretrained": False,
    "image_size": 32,
    "epochs": 2,
    "warmup_epochs": 0,
    "global_batch": 5,
    "workers": 0,
    "device": "cpu",
    "report": False,
}


@pytest.fixture(scope="module")
def cub(tmp_path_factory) -> str:
    return str(write_cub(tmp_path_factory.mktemp("data") / "CUB"))


@pytest.mark.parametrize("method", method_names())
def test_one_graph_serves_all_steps(tmp_path, cub, method):
    torch.compiler.reset()
    counter = CompileCounter()
    config = make_config({**TINY, "data": cub, "out": str(tmp_path / "run"), "method": method}, "test")
    trainer = Trainer(config, torch.device("cpu"))
    trainer.model.compile(backend=counter)
    trainer.train_epoch()
    assert counter.frame_count == 1
    trainer.validate_epoch()  # in evaluation mode, with batches of another size
    evaluation = counter.frame_count
    trainer.train_epoch()
    assert counter.frame_count == evaluation
