"""One response's units to prompts: what the model is asked, and what it may answer.

Event loop only; the model's own code, and the reading of figures, run in the worker pool.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from engine.errors import EngineStoppedError
from models.errors import PlanError, SpecError
from models.spec import PlanRequest
from models.text.spoken import spoken_form
from realtime.bridge import EngineBridge
from realtime.settings import SpeechSettings, max_seconds, model_options
from realtime.speech.errors import ResponseFailedError
from realtime.speech.segments import WordStream, speech_budget_s
from realtime.workers import Workers

if TYPE_CHECKING:
    from models.base import PromptPlan

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

EMPTY_TEXT: Final = "empty_text"
INVALID: Final = "invalid_value"
SPEED_OPTION: Final = "speed"
"""Of every model that can speak slower."""


class Planner:
    """Plans the units of a response.

    Args:
        bridge: the engine.
        settings: voice, language and options, checked.
        workers: where plans are made.
    """

    def __init__(self, bridge: EngineBridge, settings: SpeechSettings, workers: Workers) -> None:
        self._bridge = bridge
        self._settings = settings
        self._workers = workers
        languages = bridge.spec.languages
        # A model of several finds out by itself which one a text is in, unless it was told.
        self._language = settings.language or (languages[0] if len(languages) == 1 else None)

    async def plan(self, text: str, *, seed: int, is_final: bool) -> PromptPlan | None:
        """The prompt of a unit; None when the model finds nothing in it to speak.

        Streamed words are given as they are written: what a figure means may come with the next.

        Raises:
            ResponseFailedError: it cannot be planned.
        """
        request = PlanRequest(
            text=text,
            voice=self._settings.voice,
            language=self._settings.language,
            options=model_options(self._settings, self._bridge.spec),
            max_seconds=max_seconds(self._settings, self._bridge.spec),
            seed=seed,
            is_text_final=is_final,
        )
        return await self._ask_model(partial(self._plan_spoken, request))

    async def extend(self, stream: WordStream, text: str, *, is_final: bool) -> None:
        """Give a stream more words.

        Raises:
            ResponseFailedError: they cannot be taken.
        """
        stream.text += text
        if is_final:
            stream.segment.budget_s = self.budget_s(stream.text)
        feed, plan = stream.segment.feed, stream.plan
        extend = partial(self._bridge.extend_text, feed, plan, text, is_final=is_final)
        await self._ask_model(extend)

    def budget_s(self, text: str) -> float:
        """Seconds that a unit may last at most, at the speed that was asked for.

        An answer to it has a length of its own.
        """
        spec = self._bridge.spec
        if spec.answers(self._settings.options):
            return math.inf
        speed = self._settings.options.get(SPEED_OPTION, 1.0)
        return speech_budget_s(text, speed if isinstance(speed, float | int) else 1.0)

    def _plan_spoken(self, request: PlanRequest) -> PromptPlan:
        """Worker thread."""
        if request.is_text_final:
            request = replace(request, text=spoken_form(request.text, self._language))
        return self._bridge.handle.plan(request)

    async def _ask_model(self, work: Callable[[], Result]) -> Result | None:
        """Run the model's own code in a worker thread; its faults end this response alone.

        None when the model finds nothing to speak in the text.
        """
        try:
            return await self._workers.run(work)
        except PlanError as error:
            if error.code == EMPTY_TEXT:
                return None
            raise self._failure_of(error) from None
        except SpecError as error:
            # A model took an option's value as it came, and it is no setting of the sampler.
            raise ResponseFailedError(INVALID, str(error), kind="invalid_request_error") from None
        except EngineStoppedError as error:
            raise ResponseFailedError("engine_stopped", str(error)) from None
        except Exception as error:
            logger.exception("a model's planning failed")
            raise ResponseFailedError("model_error", f"planning failed: {error}") from error

    def _failure_of(self, error: PlanError) -> ResponseFailedError:
        names = {option.name for option in self._bridge.spec.options}
        param = f"options.{error.param}" if error.param in names else None
        return ResponseFailedError(
            error.code, error.message, kind="invalid_request_error", param=param
        )
