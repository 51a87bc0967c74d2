"""Stage `corpus`: the sentences that the teacher will speak.

Sources: examples and glosses of WordNet (Debian package `wordnet-base`) and sentences that this
project generates (templates.py). Held-out sentences never enter.
"""

import random
import re
import subprocess
from pathlib import Path

from models.pico.training import words
from models.pico.training.common import SEED, WORK, console, write_jsonl
from models.pico.training.templates import TEMPLATES, fill

N_EXAMPLES, N_GLOSSES, N_TEMPLATES, N_SHORT, N_WORDS, N_JOINED = 8000, 2000, 7600, 900, 1700, 1300
_LIKELY = re.compile(r"[A-Za-z][A-Za-z ,;:'.!?-]+$")
# An agent's voice should not be taught slurs and gore; WordNet has examples of both.
_AVOID = re.compile(
    r"nigg|fuck|shit|cunt|whore|slut|rape|nazi|negro|faggot|sex|kill|murder|suicid|jew|bitch|corpse",
    re.IGNORECASE,
)


def fetch_wordnet(folder: Path) -> Path:
    """Download and unpack the Debian package without installing it; return its data folder."""
    data = folder / "usr" / "share" / "wordnet"
    if not data.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "wordnet-base"], cwd=folder, check=True)
        package = next(folder.glob("wordnet-base_*.deb"))
        subprocess.run(["dpkg", "-x", package.name, "."], cwd=folder, check=True)
    return data


def as_sentence(text: str) -> str | None:
    """Tidy a raw example to a sentence, or return None if it is not one to speak."""
    text = " ".join(text.replace("`", "'").replace("--", ", ").replace(" ,", ",").split())
    text = text.strip(" ,;:-")
    if not 12 <= len(text) <= 130 or text.count(" ") < 2:
        return None
    if not _LIKELY.match(text) or _AVOID.search(text) or re.search(r"[A-Z]{3}|\.\.|\w\.\w", text):
        return None
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?" else text + "."


def wordnet_lines(data: Path) -> tuple[list[str], list[str], list[str]]:
    """Read WordNet; return (example sentences, gloss sentences, single words)."""
    examples: dict[str, None] = {}
    glosses: dict[str, None] = {}
    lemmas: dict[str, None] = {}
    for part in ("noun", "verb", "adj", "adv"):
        for line in (data / f"data.{part}").read_text(encoding="latin-1").splitlines():
            if line.startswith("  ") or "|" not in line:
                continue
            head, gloss = line.split("|", 1)
            fields = head.split()
            word = fields[4].replace("_", " ")
            if re.fullmatch(r"[A-Za-z]{4,13}( [a-z]{3,9})?", word) and not _AVOID.search(line):
                lemmas[word] = None
            for quoted in re.findall(r'"([^"]+)"', gloss):
                if (sentence := as_sentence(quoted)) is not None:
                    examples[sentence] = None
            plain = re.sub(r'[;:]?\s*"[^"]*"?|\([^)]*\)', "", gloss).split(";")[0]
            if part == "noun" and (sentence := as_sentence(plain)) is not None:
                glosses[sentence] = None
    return list(examples), list(glosses), list(lemmas)


def word_lists(lemmas: list[str], count: int, rng: random.Random) -> list[str]:
    """Make sentences around rare words, so that no sound of English stays unseen."""
    frames = [
        "{}.",
        "{}?",
        "The word is {}.",
        "{}, {}, and {}.",
        "{} and {}.",
        "Did you say {}?",
        "It means {}, or {}.",
        "Not {}, but {}.",
        "Is it {} or {}?",
        "I said {}!",
        "{}: {}; {}.",
    ]
    out = []
    for _ in range(count):
        frame = rng.choice(frames)
        text = frame.format(*(rng.choice(lemmas) for _ in range(frame.count("{}"))))
        out.append(text[0].upper() + text[1:])
    return out


def build(held_out: set[str], data: Path) -> list[dict[str, str]]:
    """Return the training sentences in a fixed random order, as {"text", "source"}."""
    rng = random.Random(SEED)
    examples, glosses, lemmas = wordnet_lines(data)
    for pool in (examples, glosses, lemmas):
        rng.shuffle(pool)
    groups: dict[str, list[str]] = {
        "wordnet-example": [t for t in examples if t not in held_out][:N_EXAMPLES],
        "wordnet-gloss": [t for t in glosses if t not in held_out][:N_GLOSSES],
        "template": [fill(TEMPLATES[i % len(TEMPLATES)], rng) for i in range(N_TEMPLATES)],
        "wordnet-word": word_lists(lemmas, N_WORDS, rng),
        "short": [words.SHORT[i % len(words.SHORT)].strip() for i in range(N_SHORT)],
    }
    pool = groups["wordnet-example"] + groups["template"] + groups["short"]
    groups["joined"] = [
        " ".join(rng.sample(pool, rng.choice([2, 2, 2, 3]))) for _ in range(N_JOINED)
    ]
    rows = [
        {"text": text, "source": source}
        for source, texts in groups.items()
        for text in texts
        if text not in held_out and len(text) <= 260
    ]
    rng.shuffle(rows)
    return rows


def run() -> None:
    """Write training-work/corpus.jsonl."""
    from models.pico.training import heldout

    WORK.mkdir(exist_ok=True)
    rows = build(heldout.all_texts(), fetch_wordnet(WORK / "wordnet"))
    write_jsonl(WORK / "corpus.jsonl", rows)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["source"]] = counts.get(row["source"], 0) + 1
    console.print(f"corpus: {len(rows)} sentences {counts}")
