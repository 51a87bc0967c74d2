"""Run the recipe: `python -m models.pico.training all`, or one stage at a time."""

import argparse
from collections.abc import Callable

from models.pico.training import choose, codec, corpus, evaluate, export, lm, post, prep, synth
from models.pico.training.common import WORK, console


def main() -> None:
    """Parse the stage and run it; `all` skips stages whose output is there."""
    parser = argparse.ArgumentParser(prog="models.pico.training", description=__doc__)
    parser.add_argument("--hours", type=float, default=12.0, help="speech to synthesize")
    parser.add_argument("--predictor-minutes", type=float, default=5.0)
    parser.add_argument("--lm-minutes", type=float, default=34.0)
    parser.add_argument("--post-minutes", type=float, default=5.0)
    parser.add_argument("--set", default="all", help="test, dev, more, codes, spread, seeds or all")
    parser.add_argument("stage", choices=["all", *_STAGES])
    args = parser.parse_args()
    for name, (run, output) in _STAGES.items():
        if args.stage == name or (
            args.stage == "all" and not (output and (WORK / output).exists())
        ):
            console.rule(name)
            run(args)


_STAGES: dict[str, tuple[Callable[[argparse.Namespace], None], str]] = {
    "corpus": (lambda _: corpus.run(), "corpus.jsonl"),
    "synth": (lambda a: synth.run(a.hours), ""),
    "codec": (lambda _: codec.run(), "codec.npz"),
    "prep": (lambda _: prep.run(), "prep-2/p_start.npy"),
    "predictor": (lambda a: post.run_predictor(a.predictor_minutes), "predictor.pt"),
    "codes": (lambda _: post.run_codes(), "prep-2/codes.npy"),
    "post": (lambda a: post.run_post(a.post_minutes), "post.pt"),
    "lm": (lambda a: lm.run(a.lm_minutes), "lm.pt"),
    "export": (lambda _: export.run(), ""),
    "choose": (lambda _: choose.run(), "choose.json"),
    "evaluate": (lambda a: evaluate.run(a.set), ""),
}

if __name__ == "__main__":
    main()
