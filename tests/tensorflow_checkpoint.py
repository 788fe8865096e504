"""A google-research/electra checkpoint in small: its variables by name, and the program that wrote the golden file.

`python tests/tensorflow_checkpoint.py FOLDER` writes it with TensorFlow, which nothing else here needs. The golden file
was written by TensorFlow 2.21.0.
"""

from __future__ import annotations

import sys
import zlib

import numpy as np
from numpy.typing import NDArray

VOCAB, POSITIONS, EMBEDDING, WIDTH, GENERATOR_WIDTH, LAYERS = 75, 24, 16, 64, 32, 2
Arrays = dict[str, NDArray[np.generic]]


def value(name: str, *shape: int) -> NDArray[np.float32]:
    """Numbers that differ from tensor to tensor and compress well."""
    numbers = np.arange(int(np.prod(shape)), dtype=np.int64) * 7919 + zlib.crc32(name.encode())
    return ((numbers % 41 - 20) / 64).astype(np.float32).reshape(shape)


def dense(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/gamma": (width,), f"{name}/beta": (width,)}


def encoder(name: str, width: int, *, layers: int = LAYERS) -> dict[str, tuple[int, ...]]:
    shapes = dense(f"{name}/embeddings_project", EMBEDDING, width)
    for number in range(layers):
        layer = f"{name}/encoder/layer_{number}"
        for part in ("query", "key", "value"):
            shapes |= dense(f"{layer}/attention/self/{part}", width, width)
        shapes |= dense(f"{layer}/attention/output/dense", width, width)
        shapes |= norm(f"{layer}/attention/output/LayerNorm", width)
        shapes |= dense(f"{layer}/intermediate/dense", width, 4 * width)
        shapes |= dense(f"{layer}/output/dense", 4 * width, width)
        shapes |= norm(f"{layer}/output/LayerNorm", width)
    return shapes


def variables() -> Arrays:
    """Every variable of a pre-training checkpoint: two encoders, two heads, moments, the step."""
    shapes: dict[str, tuple[int, ...]] = {
        "electra/embeddings/word_embeddings": (VOCAB, EMBEDDING),
        "electra/embeddings/position_embeddings": (POSITIONS, EMBEDDING),
        "electra/embeddings/token_type_embeddings": (2, EMBEDDING),
        **norm("electra/embeddings/LayerNorm", EMBEDDING),
        **encoder("electra", WIDTH),
        **encoder("generator", GENERATOR_WIDTH),
        **dense("discriminator_predictions/dense", WIDTH, WIDTH),
        **dense("discriminator_predictions/dense_1", WIDTH, 1),
        **dense("generator_predictions/dense", GENERATOR_WIDTH, EMBEDDING),
        **norm("generator_predictions/LayerNorm", EMBEDDING),
        "generator_predictions/output_bias": (VOCAB,),
        "electra/embeddings/LayerNorm/gamma/adam_m": (EMBEDDING,),
        "electra/embeddings/LayerNorm/gamma/adam_v": (EMBEDDING,),
    }
    arrays: Arrays = {name: value(name, *shape) for name, shape in shapes.items()}
    arrays["global_step"] = np.array(1000, np.int64)
    return arrays


def main(folder: str) -> None:
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    for name, array in variables().items():
        tf.get_variable(name, initializer=array)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, f"{folder}/model.ckpt-1000", write_meta_graph=False)


if __name__ == "__main__":
    main(sys.argv[1])
