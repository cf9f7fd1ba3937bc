#!/bin/sh
# Every method at one budget on CUB: DeiT-Tiny, three epochs of batches of 32, the same optimiser at a rate that stays;
# SAT also at its own rate. Then the maps of the same weights without any training. What is finished is left as it is,
# and a run that was stopped goes on. `scm-fast compare runs/methods/*` prints the table.
#     configs/methods.sh CUB_200_2011 deit_tiny.safetensors runs/methods [further options of train.py]
#     configs/methods.sh CUB_200_2011 true runs/methods                      weights of timm's hub
set -eu
data=$1 weights=$2 out=$3
shift 3
train() {
    name=$1 method=$2
    shift 2
    if [ ! -e "$out/$name/evaluation/metrics.json" ]; then
        ${LAUNCH:-python} train.py --config configs/cub_deit_tiny.yaml --data "$data" --pretrained "$weights" --preset official \
            --global-batch 32 --lr 5e-5 --min-lr 5e-5 --warmup-epochs 0 --epochs 3 --resume auto --out "$out/$name" --method "$method" "$@"
    fi
}
paper="{iterations: 4, detach_init: false}" # the paper's calibration with the official optimiser
train sat sat "$@"
train tscam tscam "$@"
train scm scm --calibration "$paper" "$@"
train lctr lctr "$@"
train sat-own-lr sat --lr 1e-4 --min-lr 1e-4 "$@"
train sat-scm sat --calibration "$paper" "$@"

map() {
    name=$1
    shift
    if [ ! -e "$out/map-$name/metrics.json" ]; then
        ${LAUNCH:-python} evaluate.py --model deit_tiny_patch16_224 --data "$data" --out "$out/map-$name" "$@"
    fi
}
if [ "$weights" = true ]; then set --; else set -- --pretrained "$weights"; fi
for name in attention rollout rpam gradcam layercam chefer tokencut; do
    map "$name" --map "$name" "$@"
done
map attention-refined --map attention --refine "$@"
