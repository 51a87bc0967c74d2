# ruff: noqa: RUF001 -- phoneme letters look like Latin ones
"""Words that the source dictionaries lack or say otherwise than we want: our own entries."""

from __future__ import annotations

from typing import Final

_LINES: Final = """
an ɐn|am ɐm|and ænd|for fɔːɹ|him hɪm|them ðɛm|us ʌs|some sʌm|me miː|but bʌt|our aʊɚ|who huː
i'm aɪm|i'd aɪd|i'll aɪl|i've aɪv|you're jʊɹ|we're wɪɹ|they're ðɛɹ|it'd ˈɪɾəd|it'll ˈɪɾəl
there's ðɛɹz|that's ðæts|what's wˌʌts|let's lˈɛts|who's hˌuːz|here's hˈɪɹz|how's hˌaʊz
cafe kæfˈeɪ|wifi wˈaɪfaɪ|app ˈæp|blog blˈɑːɡ|podcast pˈɑːdkæst|emoji ɪmˈoʊdʒi|chatbot tʃˈætbɑːt
email ˈiːmeɪl|online ˌɑːnlˈaɪn|google ɡˈuːɡəl|iphone ˈaɪfoʊn|ipad ˈaɪpæd|youtube jˈuːtuːb
github ɡˈɪthʌb|javascript dʒˈɑːvəskɹˌɪpt|python pˈaɪθɑːn|linux lˈɪnəks|ubuntu uːbˈʊntuː
json dʒˈeɪsən|sql sˈiːkwəl|yaml jˈæməl|regex ɹˈɛdʒɛks|async ˈeɪsˌɪŋk|config kˈɑːnfɪɡ
localhost lˈoʊkəlhˌoʊst|login lˈɑːɡɪn|logout lˈɑːɡaʊt|signup sˈaɪnʌp|gmail dʒˈiːmeɪl
covid kˈoʊvɪd|uber ˈuːbɚ|spotify spˈɑːɾɪfˌaɪ|netflix nˈɛtflɪks|tiktok tˈɪktɑːk
tesla tˈɛslə|nvidia ɛnvˈɪdiə|pytorch pˈaɪtɔːɹtʃ|cuda kˈuːdə
hmm hˈʌm|mm mˈʌm|mhm mhˈʌm|uh ˈʌ|um ˈʌm|shh ʃˈʌ|psst pˈɪst|brr bˈɜː|etcetera ɛtsˈɛtɚɹə
etc ɛtsˈɛtɚɹə|miz mˈɪz|missus mˈɪsɪz|vs vˈɜːsəs|ok oʊkˈeɪ|okay oʊkˈeɪ|yeah jˈɛ|nope nˈoʊp
parley pˈɑːɹli|deja dˈeɪʒɑː|vu vˈuː|naive naɪˈiːv|resume ɹᵻzˈuːm
nguyen nwˈɪn|tts tˌiːtˌiːˈɛs|dr dˈɑːktɚ
"""
OWN_VARIANTS: Final[dict[str, dict[str, str]]] = {
    "lead": {"METAL": "lˈɛd"},
    "wound": {"VERB": "wˈaʊnd"},
    "used": {"PAST": "jˈuːst"},
    "live": {"VERB": "lˈɪv"},
    "lives": {"VERB": "lˈɪvz"},
    "read": {"PAST": "ɹˈɛd"},
    "separate": {"VERB": "sˈɛpəɹˌeɪt"},
    "am": {"STRONG": "ˈæm"},
    "and": {"STRONG": "ˈænd"},
    "for": {"STRONG": "fˈɔːɹ"},
    "of": {"STRONG": "ˈʌv"},
}
OWN_ACRONYMS: Final = (
    "JSON",
    "SQL",
    "YAML",
    "CUDA",
    "COVID",
    "LASER",
    "GIF",
    "RAM",
    "ROM",
    "SIM",
    "PIN",
)


def _table() -> dict[str, str]:
    """Word to phoneme string."""
    entries = (entry for line in _LINES.strip().split("\n") for entry in line.split("|"))
    return dict(entry.split(" ", 1) for entry in entries)


OWN_WORDS: Final = _table()
