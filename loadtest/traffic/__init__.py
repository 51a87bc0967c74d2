"""Who calls, when, and what they do: schedules, scenarios, texts, and the callers themselves."""
