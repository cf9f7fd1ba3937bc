#!/bin/sh
# Every method at one budget on CUB: DeiT-Tiny, three epochs of batches of 32, the same optimiser at a rate that stays;
# SAT also at its own rate. The models of the last epoch are evaluated, and beside them maps of the same weights without
# any training. What is finished is left as it is, and a run that was stopped goes on.
# `scm-fast compare runs/methods/evaluations/*` prints the table.
#     configs/methods.sh CUB_200_2011 deit_tiny.safetensors runs/methods [further options of train.py]
#     configs/methods.sh CUB_200_2011 true runs/methods                      weights of timm's hub
set -eu
data=$1 weights=$2 out=$3
shift 3
evaluation() {
    name=$1
    shift
    if [ ! -e "$out/evaluations/$name/metrics.json" ]; then
        ${LAUNCH:-python} evaluate.py --data "$data" --out "$out/evaluations/$name" "$@"
    fi
}
method() {
    name=$1 method=$2
    shift 2
    if [ ! -e "$out/runs/$name/evaluation/metrics.json" ]; then
        ${LAUNCH:-python} train.py --config configs/cub_deit_tiny.yaml --data "$data" --pretrained "$weights" \
            --preset official --global-batch 32 --lr 5e-5 --min-lr 5e-5 --warmup-epochs 0 --epochs 3 --resume auto \
            --out "$out/runs/$name" --method "$method" "$@"
    fi
    evaluation "$name" --checkpoint "$out/runs/$name/last"
}
paper="{iterations: 4, detach_init: false}" # the paper's calibration with the official optimiser
method sat sat "$@"
method tscam tscam "$@"
method scm scm --calibration "$paper" "$@"
method lctr lctr "$@"
method sat-own-lr sat --lr 1e-4 --min-lr 1e-4 "$@"
method sat-scm sat --calibration "$paper" "$@"

if [ "$weights" = true ]; then set --; else set -- --pretrained "$weights"; fi
for name in attention rollout rpam gradcam layercam chefer tokencut; do
    evaluation "map-$name" --model deit_tiny_patch16_224 --map "$name" "$@"
done
evaluation map-attention-refined --model deit_tiny_patch16_224 --map attention --refine "$@"
