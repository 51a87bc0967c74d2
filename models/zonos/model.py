"""`zonos`, put together to the contract of `models.base`: settings before nine delayed codebooks.

Unlike the reference, an end in the very first row counts, what is no code is never drawn, and
requests of a batch do not share draws.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from models.audio.reference import REFERENCE_AUDIO, read_reference
from models.base import Advance, Attention, Decoded, PromptPlan, TextFeed
from models.checkpoint import read_safetensors
from models.codecs.dac import Dac, load_dac
from models.codecs.windowed import decode_window
from models.errors import PlanError, WeightError
from models.hugging_face import LlamaConfig, make_decoder
from models.layers.delay import NEVER, blank_outside, completed_frame, join_history
from models.module import ModelModule
from models.options import check_language, check_options
from models.spec import ModelSpec, OptionValue, PlanRequest, SamplingParams
from models.weights import Part, load_weights
from models.zonos.conditioning import PrefixRows
from models.zonos.config import (
    DAC_FOLDER,
    EMOTION,
    EMOTIONS,
    FACTS,
    GUIDANCE,
    LANGUAGE,
    LANGUAGES,
    LAST,
    MAX_SECONDS,
    MIN_P,
    PAST,
    PHONEMES,
    ROW,
    SAMPLING,
    SETTINGS,
    SPEAKER,
    TEMPERATURE,
    ZonosConfig,
    is_zonos,
    model_spec,
    read_zonos_config,
)
from models.zonos.phonemes import Phonemize, espeak, phoneme_ids
from models.zonos.speaker import FOLDER, RATE_HZ, SpeakerEncoder, read_speaker_encoder

__all__ = ["FACTS", "ZonosModel", "is_in", "load", "read_spec"]

_LAYER_PARTS = {
    "norm": "attention_norm",
    "mixer.in_proj": "attention.qkv",
    "mixer.out_proj": "attention.out",
    "norm2": "mlp_norm",
    "mlp.fc1": "mlp.gate_up",
    "mlp.fc2": "mlp.down",
}
_LAYER_KEY = re.compile(r"(backbone\.layers\.\d+\.)([\w.]+)\.(weight|bias)")


class ZonosModel(ModelModule):
    """The functions of the model.

    Args:
        config: of the checkpoint.
        weights: of the LM, by the checkpoint's keys.
        dac: the detokenizer.
        speaker: hears the voices of recordings; None: its files are not here.
        phonemize: reads text.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    delays: Tensor

    def __init__(
        self,
        config: ZonosConfig,
        weights: Mapping[str, Tensor],
        dac: Dac,
        speaker: SpeakerEncoder | None = None,
        phonemize: Phonemize = espeak,
    ) -> None:
        super().__init__()
        self.config = config
        self.spec = model_spec(config)
        self.phonemize = phonemize
        hidden, n = config.decoder.backbone.hidden, config.n_codebooks
        self.lm = nn.ModuleDict(
            {
                "prefix_conditioner": PrefixRows(config),
                "backbone": make_decoder(config.decoder),
                "embeddings": nn.ModuleList(
                    nn.Embedding(config.blank + 1, hidden) for _ in range(n)
                ),
                "heads": nn.ModuleList(nn.Linear(hidden, config.eos + 1, False) for _ in range(n)),
            }
        )
        source, names = "model.safetensors", _names(self.lm)
        load_weights(self.lm, _renamed(weights, config.decoder), source=source, names=names)
        self.dac = dac
        self.speaker = speaker
        if speaker is not None and speaker.size != config.speaker_size:
            sizes = f"{speaker.size} numbers, the checkpoint takes {config.speaker_size}"
            raise WeightError(f"{FOLDER} tells a voice by {sizes}")
        self.register_buffer("delays", torch.arange(n), persistent=False)
        self.requires_grad_(False)

    @torch.inference_mode()
    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt, and the companion's, which is told the text alone. Worker thread.

        Raises:
            PlanError: `unknown_option`, `invalid_type`, `invalid_value`, `unsupported_language`,
                `empty_text`, `prompt_too_long`, `phonemizer_missing`, `phonemizer_failed`,
                `speaker_encoder_missing`, and those of `models.audio.reference.read_reference`.
        """
        options = check_options(self.spec, request.options)
        language = check_language(self.spec, request.language) or LANGUAGES[0]
        if not request.text.strip():
            raise PlanError("empty_text", "the text is empty: there is nothing to say", "text")
        told = self._told(request.text, language, options)
        told[SPEAKER] = self._voice(request, options)
        max_frames = self._max_frames(request, len(told[PHONEMES] or ()))
        prefix: PrefixRows = self.lm["prefix_conditioner"]  # type: ignore[assignment] # made so
        scale = float(options[GUIDANCE.name])
        sampling = SamplingParams(
            temperature=float(options[TEMPERATURE.name]),
            min_p=float(options[MIN_P.name]),
            repetition_penalty=SAMPLING.repetition_penalty,
            repetition_window=SAMPLING.repetition_window,
        )
        blind = None
        if scale != 1.0:
            blind = self._prompt(prefix(prefix.without_settings(told)), max_frames)
        plan = self._prompt(prefix(told), max_frames)
        return PromptPlan(
            ids=plan.ids,
            embeds=plan.embeds,
            embed_mask=plan.embed_mask,
            state=plan.state,
            max_frames=max_frames,
            companion=blind,
            guidance_scale=scale,
            sampling={column.name: sampling for column in self.spec.columns},
        )

    def _voice(
        self, request: PlanRequest, options: Mapping[str, OptionValue]
    ) -> list[float] | None:
        reference = read_reference(request, options, RATE_HZ)
        if reference is None:
            return None
        if self.speaker is None:
            message = (
                f"the encoder of voices is not here: put Zyphra/Zonos-v0.1-speaker-embedding "
                f"into the folder {FOLDER} of the checkpoint"
            )
            raise PlanError("speaker_encoder_missing", message, REFERENCE_AUDIO.name)
        return self.speaker.vector(reference)

    def _told(
        self, text: str, language: str, options: Mapping[str, OptionValue]
    ) -> dict[str, Sequence[float] | None]:
        shares = [float(options[name]) for name in EMOTIONS]
        total = sum(shares) or 1.0
        return {
            PHONEMES: phoneme_ids(text, language, self.phonemize),
            LANGUAGE: [LANGUAGES.index(language)],
            EMOTION: [share / total for share in shares],
            **{name: [float(options[name])] for name in SETTINGS},
        }

    def _prompt(self, rows: Tensor, max_frames: int) -> PromptPlan:
        """Rows of settings, and one of blanks behind them."""
        ids = torch.full((len(rows) + 1, self.config.n_codebooks), self.config.blank)
        state = torch.zeros(self.spec.state_size, dtype=torch.int64)
        state[LAST] = NEVER
        state[PAST:] = self.config.blank
        is_given = torch.ones(len(ids), dtype=torch.bool)
        is_given[-1] = False
        embeds = torch.cat([rows, rows.new_zeros(1, rows.shape[1])]).cpu()
        return PromptPlan(
            ids=ids, embeds=embeds, embed_mask=is_given, state=state, max_frames=max_frames
        )

    def _max_frames(self, request: PlanRequest, n_phonemes: int) -> int:
        rate_hz = self.spec.frame.frame_rate_hz
        n_rows = n_phonemes + len(self.config.conditioners) + self.config.n_codebooks
        n_most = self.spec.backbone.max_positions - n_rows
        if n_most < rate_hz:
            raise PlanError("prompt_too_long", "the text is too long: split it", "text")
        # A phoneme lasts a tenth of a second; speech of half that pace still fits.
        wanted_s = min(MAX_SECONDS, 2.0 + 0.2 * n_phonemes, request.max_seconds or math.inf)
        return max(1, min(n_most, math.floor(wanted_s * rate_hz)))

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """The sum over codebooks; blanks and ends have rows of their own."""
        x = ids.new_zeros((), dtype=torch.float32)
        for column, table in enumerate(self._parts("embeddings")):
            x = x + table(ids[:, column])
        return x

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.lm["backbone"](x, positions, attention)
        return hidden

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """Each codebook has a head of its own."""
        return [head(hidden) for head in self._parts("heads")]

    def _parts(self, name: str) -> nn.ModuleList:
        parts = self.lm[name]
        assert isinstance(parts, nn.ModuleList), "made so"
        return parts

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Blank what warms up or drains; the end moves through the codebooks, a row each."""
        config = self.config
        row, old_last = state[:, ROW], state[:, LAST]
        is_end = (ids[:, 0] == config.eos) & (old_last == NEVER)
        last = torch.where(is_end, row, old_last)
        rows = blank_outside(ids, row, last, self.delays, config.blank)
        frame = row.unsqueeze(1) - self.delays
        rows = torch.where(frame == last.unsqueeze(1), config.eos, rows)
        past = join_history(state[:, PAST:], rows)
        frame_idx = row - (config.n_codebooks - 1)
        head = torch.stack([state[:, 0], row + 1, last], dim=1)
        return Advance(
            rows=rows,
            state=torch.cat([head, past[:, 1:].flatten(1)], dim=1),
            frames=completed_frame(past, self.delays).clamp(max=config.dac.n_codes - 1),
            emits=(frame_idx >= 0) & (frame_idx < last),
            text_ids=torch.full_like(row, -1),
            is_finished=(frame_idx >= last - 1) | (last == 0),
            is_starved=torch.zeros_like(is_end),
        )

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """See `models.codecs.windowed.decode_window`."""
        return decode_window(self.dac, frames, n_valid, state, is_last)


def is_in(folder: Path) -> bool:
    """Whether a folder holds this family, by what its files state."""
    return is_zonos(folder)


def read_spec(folder: Path) -> ModelSpec:
    """The facts of a checkpoint. Raises: `WeightError`."""
    return model_spec(read_zonos_config(folder))


def load(folder: Path) -> ZonosModel:
    """The model of a checkpoint folder, on the CPU in float32. Raises: `WeightError`."""
    config = read_zonos_config(folder)
    return ZonosModel(
        config,
        read_safetensors(folder),
        load_dac(folder / DAC_FOLDER),
        speaker=read_speaker_encoder(folder),
    )


def _renamed(
    weights: Mapping[str, Tensor], config: LlamaConfig
) -> dict[str, Tensor | Sequence[Part]]:
    """Their keys to ours; the two halves of the feed-forward layers change places."""
    renamed: dict[str, Tensor | Sequence[Part]] = {}
    shape = (2 * config.inner, config.backbone.hidden)
    for key, tensor in weights.items():
        name = key.replace("backbone.norm_f.", "backbone.norm.")
        stem, found, rest = name.partition("backbone.layers.")
        if found and not stem:
            layer, _, part = rest.partition(".")
            theirs, _, kind = part.rpartition(".")
            if theirs not in _LAYER_PARTS or kind not in ("weight", "bias"):
                raise WeightError(f"model.safetensors has a key of no known layout: {key}")
            name = f"backbone.layers.{layer}.{_LAYER_PARTS[theirs]}.{kind}"
            if theirs == "mlp.fc1" and tensor.shape == shape:
                up, gate = tensor.chunk(2)
                renamed[name] = [Part(name=key, tensor=one, n_rows=len(one)) for one in (gate, up)]
                continue
        renamed[name] = tensor
    return renamed


def _names(lm: nn.ModuleDict) -> dict[str, str]:
    """Our keys of the backbone to theirs."""
    theirs = {our: their for their, our in _LAYER_PARTS.items()}
    names = {f"backbone.norm.{kind}": f"backbone.norm_f.{kind}" for kind in ("weight", "bias")}
    for key in lm.state_dict():
        match = _LAYER_KEY.fullmatch(key)
        if match:
            names[key] = f"{match[1]}{theirs[match[2]]}.{match[3]}"
    return names
