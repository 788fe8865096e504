"""How fast this is, on one machine in one run, and whether its kernels may train.

`electra bench` measures our training step against the same step written with `transformers` modules. Further programs
start as `python -m electra.bench.NAME`: gate, stack_check, op_gains, bitwise, loader_speed, prepare_speed,
finetune_speed, inference_speed, kernel_quality, onnx_int8, serve_load, start_speed, few_rows, few_rows_sweep and
demo_seeds.
"""
