#!/bin/sh
# The paper's ablations on CUB: number of blocks, and Newton-Schulz iterations p.
#     configs/ablations.sh CUB_200_2011                    one process
#     LAUNCH="torchrun --nproc-per-node 8" configs/ablations.sh CUB_200_2011
set -eu
train() {
    ${LAUNCH:-python} train.py --config configs/cub_deit_small.yaml --data "$data" --resume auto "$@"
}
data=$1
for blocks in 1 2 3 4 5 6; do
    train --calibration "{num_blocks: $blocks}" --out "runs/ablation/blocks-$blocks"
done
for p in 1 2 3 4 5 6; do
    train --calibration "{iterations: $p}" --out "runs/ablation/iterations-$p"
done
