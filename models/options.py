"""Checks of request options, voices and languages against a model's spec. No torch.

The gateway calls these before a request reaches a model; models call them again in `plan`, so that
a request made in-process is held to the same rules.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping

from models.errors import PlanError
from models.spec import ModelSpec, OptionSpec, OptionValue

_MAX_SHOWN_CHARACTERS = 80
_MAX_SHOWN_NAMES = 40
_KINDS = {"integer": "an integer", "audio": "a string: a sound file in base64"}


def number_option(
    name: str, default: float, least: float, most: float, description: str
) -> OptionSpec:
    """An option that is a number within bounds."""
    return OptionSpec(
        name=name,
        kind="number",
        default=default,
        description=description,
        minimum=least,
        maximum=most,
    )


def integer_option(name: str, default: int, least: int, most: int, description: str) -> OptionSpec:
    """An option that is a whole number within bounds."""
    return OptionSpec(
        name=name,
        kind="integer",
        default=default,
        description=description,
        minimum=least,
        maximum=most,
    )


def check_options(spec: ModelSpec, options: Mapping[str, object]) -> dict[str, OptionValue]:
    """Give the values of all options that are set or have a default.

    Raises:
        PlanError: `unknown_option`, `invalid_type` or `invalid_value`; `param` names the option.
    """
    known = {option.name: option for option in spec.options}
    for name in options:
        if name not in known:
            message = f"{spec.name} has no option {_shown(name)}; {_accepted(name, known)}"
            raise PlanError("unknown_option", message, str(name))
    values: dict[str, OptionValue] = {}
    for name, option in known.items():
        if name in options:
            values[name] = _checked_value(option, options[name])
        elif option.default is not None:
            values[name] = option.default
    return values


def check_voice(spec: ModelSpec, voice: str | None) -> str | None:
    """Give the voice to use: the named one, or the model's first; None if it has no voices.

    Raises:
        PlanError: `unknown_voice`.
    """
    return _checked_name("voice", "unknown_voice", voice, spec.voices, spec.name)


def check_language(spec: ModelSpec, language: str | None) -> str | None:
    """Give the language to use: the named one, or the model's first; None if it has no languages.

    Raises:
        PlanError: `unsupported_language`.
    """
    return _checked_name("language", "unsupported_language", language, spec.languages, spec.name)


def _checked_name(
    param: str, code: str, name: object, known: tuple[str, ...], model: str
) -> str | None:
    if name is None:
        return known[0] if known else None
    if not isinstance(name, str):
        raise PlanError("invalid_type", f"{param} is {_shown(name)}, must be a string", param)
    if name not in known:
        message = f"{model} has no {param} {_shown(name)}; {_accepted(name, known)}"
        raise PlanError(code, message, param)
    return name


def _checked_value(option: OptionSpec, value: object) -> OptionValue:
    typed = _typed_value(option, value)
    if option.choices and typed not in option.choices:
        _refuse_value(option, value, _accepted(str(typed), option.choices))
    if isinstance(typed, float) and not math.isfinite(typed):
        _refuse_value(option, value, "must be a finite number")
    if not isinstance(typed, str):
        _check_bounds(option, typed)
    return typed


def _typed_value(option: OptionSpec, value: object) -> OptionValue:
    # bool is a subclass of int in Python, yet `true` is no number in JSON.
    if option.kind == "boolean" and isinstance(value, bool):
        return value
    if option.kind in ("string", "audio") and isinstance(value, str):
        return value
    if option.kind == "integer" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if option.kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
        return value
    wanted = _KINDS.get(option.kind, f"a {option.kind}")
    message = f"option {option.name!r} is {_shown(value)}, must be {wanted}"
    raise PlanError("invalid_type", message, option.name)


def _check_bounds(option: OptionSpec, value: float) -> None:
    if option.minimum is not None and value < option.minimum:
        _refuse_value(option, value, f"must be at least {option.minimum:g}")
    if option.maximum is not None and value > option.maximum:
        _refuse_value(option, value, f"must be at most {option.maximum:g}")


def _refuse_value(option: OptionSpec, value: object, accepted: str) -> None:
    message = f"option {option.name!r} is {_shown(value)}; {accepted}"
    raise PlanError("invalid_value", message, option.name)


def _accepted(name: object, known: Iterable[str]) -> str:
    """What would be accepted, the closest match first if there is one."""
    names = sorted(known)
    if not names:
        return "it takes none"
    shown = ", ".join(names[:_MAX_SHOWN_NAMES]) + (", ..." if len(names) > _MAX_SHOWN_NAMES else "")
    close = difflib.get_close_matches(str(name)[:_MAX_SHOWN_CHARACTERS], names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}accepted: {shown}"


def _shown(value: object) -> str:
    """`value` as text, short enough for a message."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[:_MAX_SHOWN_CHARACTERS] + "..."
