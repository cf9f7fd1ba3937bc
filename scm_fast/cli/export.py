"""Write a trained network as one file that runs without scm-fast.

  scm-fast export --checkpoint runs/birds/last --out birds.pt2     PyTorch: torch.export.load("birds.pt2").module()
  scm-fast export --checkpoint runs/birds/last --out birds.onnx    ONNX: pip install 'scm-fast[onnx]'

The calibration module serves training only and is not in the file. Input: `images`, float32 (B, 3, height,
width) with any B, squashed to the network's size and normalised with the printed mean and std. Outputs:
`logits` (B, C), `attention` (B, h, w) and `semantic` (B, C, h, w); the map of class c is attention *
semantic[:, c]. Methods with one map for all classes, such as SAT, have no `semantic`: attention is the map.
The outputs are compared with the model's before the file is written. An ONNX file also has class_names,
image_size, mean, std and threshold as JSON in its metadata; docs/start.md runs one.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", required=True, type=Path, help="folder or published .pth file")
    parser.add_argument("--out", required=True, type=Path, help="file to write: .pt2 or .onnx")


def execute(args: argparse.Namespace) -> int:
    from ..models import load_model
    from ..models.export import export_model

    model = load_model(args.checkpoint)
    difference = export_model(model, args.out)
    config = model.config
    print(
        f"{args.out}: {args.out.stat().st_size / 2**20:.1f} MiB, differs from the model by {difference:.1e}"
    )
    print(f"images: {config.image_size[0]} x {config.image_size[1]}, mean {config.mean}, std {config.std}")
    return 0
