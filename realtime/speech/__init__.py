"""Text in, speech out: units of text, engine streams, responses, the session of the speech lane."""
