"""`glm4-voice`: hears and speaks; text and speech tokens in turn in one column."""
